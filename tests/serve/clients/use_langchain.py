"""langchain-openai as a user writes it; prints one JSON line."""

import json
import sys

from langchain_openai import OpenAI

url, model, prompt = sys.argv[1:]
llm = OpenAI(base_url=url, api_key="any", model=model, temperature=0, max_tokens=12)
whole = llm.invoke(prompt)
batch = llm.batch([prompt] * 3)
stream = "".join(llm.stream(prompt))
many = OpenAI(base_url=url, api_key="any", model=model, temperature=0, max_tokens=12, n=2, best_of=2)
generations = many.generate([prompt, prompt], stop=["\n\n\n"]).generations
print(json.dumps({"texts": [whole, *batch, stream, *(g.text for group in generations for g in group)]}))
