"""The run that tests of the program start: its config and what it trains on."""

CONFIG = """
[model]
vocab_size = 256
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
[data]
sequence_length = 32
validation_fraction = 0.2
[pipeline]
schedule = "zb-1p"
ranks = 2
microbatches = 4
microbatch_size = 2
[train]
steps = 6
warmup_steps = 2
eval_every = 3
checkpoint_every = 3
"""


def write_corpus(folder):
    """A few text files in a new folder."""
    folder.mkdir()
    for i in range(8):
        (folder / f"{i}.txt").write_text(f"file {i} says this again and again\n" * 60)
