"""How a cache is written: its manifest, its shards, and the locks between processes that fill them."""
