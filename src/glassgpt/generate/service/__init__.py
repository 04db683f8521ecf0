"""One engine for many callers: service.py runs it in a thread; fair_queue.py and admission.py order them."""
