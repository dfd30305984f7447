"""The terminal screen. The only package that imports Textual; it knows no tensors and no tokenizer."""
