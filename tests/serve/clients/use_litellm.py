"""litellm as a user writes it; prints one JSON line."""

import asyncio
import json
import sys

import litellm

url, model, prompt = sys.argv[1:]
fields = {
    "model": f"text-completion-openai/{model}",
    "prompt": prompt,
    "api_base": url,
    "api_key": "any",
    "temperature": 0,
    "max_tokens": 12,
}
texts = [litellm.text_completion(**fields).choices[0].text]
stream = litellm.text_completion(**fields, stream=True)
texts.append("".join(chunk.choices[0].text or "" for chunk in stream))
texts.append(asyncio.run(litellm.atext_completion(**fields)).choices[0].text)
try:
    litellm.text_completion(**{**fields, "max_tokens": 10**6}, num_retries=0)
    error = "none"
except litellm.BadRequestError as found:
    error = type(found).__name__
print(json.dumps({"texts": texts, "error": error}))
