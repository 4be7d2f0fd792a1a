"""How bytes move between ranks: the only room that knows gloo from NCCL."""
