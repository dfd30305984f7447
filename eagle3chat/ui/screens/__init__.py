"""Screens above the chat."""
