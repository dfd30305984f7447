"""The decoding engine: everything that happens between a prompt's token ids and a reply's events."""
