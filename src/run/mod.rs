//! The world of a run: the child, its signals, the sampler, settling.
