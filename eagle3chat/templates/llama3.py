"""Llama 3 instruct. The header with dates that 3.1 and later add is in the model's own template only."""

from eagle3chat.templates.turns import TurnTemplate

LLAMA3 = TurnTemplate(
    name="llama3",
    system=("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
    user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
    assistant=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    trim=True,
    stop_tokens=("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
)
