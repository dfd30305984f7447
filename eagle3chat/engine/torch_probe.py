"""Prints what torch sees of this machine, for `doctor`: JSON rows of device, what it is, why it is off."""

from __future__ import annotations

import json

import torch

from eagle3chat.engine.torch_graphs import switched_off


def rows() -> list[tuple[str, str, str]]:
    """The CPU, and each CUDA device or why there is none."""
    found = [("torch cpu", f"{torch.get_num_threads()} threads", "")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            found.append((f"torch cuda:{index}", f"{name}, {free >> 20:,} of {total >> 20:,} MiB free", ""))
        why = switched_off()
        found.append(("cuda graphs", "off" if why else "recorded when a chain is first used", why))
        return found
    why = "torch sees no CUDA device" if torch.version.cuda else "this torch was built without CUDA"
    return [*found, ("torch cuda", "none", why)]


if __name__ == "__main__":
    print(json.dumps(rows()))
