"""Columns travel through the runtime as frames beside the message. Importing this module makes it so."""

from asyncrl.runtime.codec import register_codec
from asyncrl.tensors.wire import Column, pack, unpack

register_codec(Column, pack, unpack)
