//! The library's own code under loom: every interleaving of a few threads, and every value that a load may see.
//! What is covered, and what is not, is in docs/internals/verification.md under "Models".

mod claims;
mod close;
mod peak;
mod reclaim;
mod rules;
mod structures;
mod world;
