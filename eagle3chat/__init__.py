"""eagle3chat: chat with a local model and watch EAGLE-3 speculative decoding work."""

__version__ = "0.1.0"
