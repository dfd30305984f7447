"""Gemma 4 instruction-tuned, with thinking off: an empty thought channel starts each reply.

Sources: the default flags of ExecuTorch's EAGLE-3 runner (--chat_prefix, --chat_suffix, --stop_ids, --stop_token,
--bos_id) for the user's turn; Google's page on Gemma 4 prompt formatting for the system turn.
"""

from eagle3chat.templates.turns import TurnTemplate

GEMMA4 = TurnTemplate(
    name="gemma4",
    system=("<|turn>system\n", "<turn|>\n"),
    user=("<|turn>user\n", "<turn|>\n"),
    assistant=("<|turn>model\n", "<turn|>\n"),
    start_reply="<|turn>model\n<|channel>thought\n<channel|>",
    stop_tokens=("<turn|>",),
    stop_ids=(1, 50, 106),
    bos_id=2,
)
