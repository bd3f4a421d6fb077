//! What can be typed: clap types and help, nothing else.
