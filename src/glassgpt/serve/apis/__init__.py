"""Other ways to ask for the same texts: chats and embeddings of OpenAI's API, and Ollama's API."""
