"""The parts that retrievers over vision-language models are made of: weights, prompts, pixels, batches, attention."""
