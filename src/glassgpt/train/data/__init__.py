"""From text to batches.

Read in this order: find_files.py (which files), document_parts.py (documents), prepare.py with workers.py and
shard_writer.py (text to shards), vocabulary.py (a tokenizer made for the texts), then shards.py with
token_file.py and file_kinds.py (reading tokens), and loader.py (batches).
"""
