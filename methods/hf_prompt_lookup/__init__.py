"""hf_prompt_lookup: transformers' ``generate`` with drafts looked up in the text so far."""
