//! `share_budget` between processes, over simulated devices whose memory they share (`sim_shared`).
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TRTALLOC_STRESS_SECONDS` | how long eight processes are killed, stopped and started | 12 |
//! | `TRTALLOC_STRESS_SEED` | the random seed | the time |
//!
//! The processes are this program again, with a task in `TRTALLOC_TEST_TASK` (`worker`).

mod processes;
pub mod worker;
