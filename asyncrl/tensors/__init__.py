"""Jagged rows: as buffers on the wire (``wire``, numpy) and as torch tensors (``jagged``, ``batch``)."""
