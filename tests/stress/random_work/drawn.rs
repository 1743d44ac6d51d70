//! Options of an allocator that are drawn together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use trtalloc::allocator::{Allocator, Request};
use trtalloc::config::Config;
use trtalloc::driver::Driver;

use super::random::Random;

pub struct Drawn {
    pub text: String,
    /// Whether the memory is pinned.
    pub pinned: bool,
}

const BUDGET: u64 = 256 << 20;

/// A budget that no other process and no other round shares.
pub struct Budget {
    folder: PathBuf,
}

impl Budget {
    pub fn new(seed: u64) -> Budget {
        let name = format!("stress-{}-{seed}", std::process::id());
        Budget {
            folder: Path::new(env!("CARGO_TARGET_TMPDIR")).join(name),
        }
    }

    pub fn option(&self) -> String {
        format!("share_budget={}/round:{}MiB", self.folder.display(), BUDGET >> 20)
    }

    pub fn begin(&self) {
        std::fs::create_dir_all(&self.folder).unwrap();
    }

    /// Removes it. All of it must be free again, if it is `whole`.
    pub fn end(&self, driver: Arc<dyn Driver>, whole: bool) {
        if whole {
            let config = Config::parse(&format!("decay_ms=0,{}", self.option())).unwrap();
            let allocator = Allocator::with_driver(driver, config).unwrap();
            let request = Request {
                size: BUDGET,
                alignment: 0,
                flags: 0,
                stream: None,
                device: Some(0),
            };
            let block = allocator.allocate(request).expect("nothing of the budget is held");
            allocator.deallocate(block, None).unwrap();
        }
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// Options of a seed. `budget` is that of its round.
pub fn options(random: &mut Random, budget: &Budget) -> Drawn {
    let budget = &*budget.option();
    let pinned = random.one_in(10);
    let mut text = if pinned { "wait_ms=2,kind=pinned" } else { "wait_ms=2" }.to_owned();
    let mut is_set = |one_in: u64, values: &[&str]| {
        if random.one_in(one_in) {
            text = format!("{text},{}", random.pick(values).expect("there are values"));
        }
    };
    is_set(2, &["limit=192MiB", "limit=256MiB"]);
    is_set(4, &["reserve=32MiB", "reserve=128MiB"]);
    is_set(
        2,
        &[
            "release_threshold=all",
            "release_threshold=0",
            "release_threshold=64MiB",
        ],
    );
    is_set(3, &["decay_ms=2", "decay_ms=8"]);
    is_set(4, &["retry_ms=1"]);
    is_set(4, &["captures=1"]);
    is_set(
        4,
        &[
            "history=all,stacks=none",
            "history=state",
            "history=all,max_entries=1000",
        ],
    );
    is_set(8, &["streams=trusted"]);
    is_set(16, &["passthrough=1"]);
    if !pinned {
        is_set(4, &["limit=30%"]);
        is_set(3, &["headroom=64MiB", "headroom=40%"]);
        is_set(4, &["backing=malloc", "backing=vmm"]);
        is_set(6, &["peers=auto"]);
        is_set(12, &["guard=1"]);
        is_set(12, &["fill=0xcd"]);
        is_set(4, &[budget]);
        is_set(12, &["share=fd", "rdma=1"]);
    }
    Drawn { text, pinned }
}
