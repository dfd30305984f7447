"""ChatML, as Qwen, SmolLM and many others use it. No system text is added by itself."""

from eagle3chat.templates.turns import TurnTemplate

CHATML = TurnTemplate(
    name="chatml",
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
    stop_tokens=("<|im_end|>", "<|endoftext|>"),
)
