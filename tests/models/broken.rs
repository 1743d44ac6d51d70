/// Rules that models break on purpose, to see that they notice: name, file, and what stands there for what.
const BROKEN: &[(&str, &str, &str, &str)] = &[
    (
        "the lock acquires",
        "pool/lock.rs",
        "        if self.held.swap(true, Ordering::Acquire) {\n            self.wait();",
        "        if self.held.swap(true, crate::unless(\"the lock acquires\", Ordering::Acquire)) {\n            self.wait();",
    ),
    (
        "a waiter acquires",
        "pool/lock.rs",
        "!self.held.swap(true, Ordering::Acquire)",
        "!self.held.swap(true, crate::unless(\"a waiter acquires\", Ordering::Acquire))",
    ),
    (
        "the lock releases",
        "pool/lock.rs",
        "self.lock.held.store(false, Ordering::Release)",
        "self.lock.held.store(false, crate::unless(\"the lock releases\", Ordering::Release))",
    ),
    (
        "a claim at home looks at the state",
        "pool/block.rs",
        "if mine && self.address",
        "if (mine || broken(\"a claim at home looks at the state\")) && self.address",
    ),
    (
        "a claim of a homeless block is one step",
        "pool/block.rs",
        "if exchanged.is_err() {",
        "if exchanged.is_err() && !broken(\"a claim of a homeless block is one step\") {",
    ),
    (
        "a claim compares the address",
        "pool/block.rs",
        "                if self.address.load(Ordering::Relaxed) == address {",
        "                if self.address.load(Ordering::Relaxed) == address || broken(\"a claim compares the address\") {",
    ),
    (
        "an owner waits for one who looks",
        "pool/block.rs",
        "if way.addr() & STATES == State::Claimed as usize {",
        "if way.addr() & STATES == State::Claimed as usize && broken(\"an owner waits for one who looks\") {
                return Err(Gone);
            }
            if way.addr() & STATES == State::Claimed as usize {",
    ),
    (
        "a claim with a home holds its lock",
        "pool/block.rs",
        "let held = home.inner.lock();",
        "let held = (!broken(\"a claim with a home holds its lock\")).then(|| home.inner.lock());",
    ),
    (
        "the index releases",
        "pool/index.rs",
        "leaf[granule % LEAF].store(id, Ordering::Release)",
        "leaf[granule % LEAF].store(id, crate::unless(\"the index releases\", Ordering::Release))",
    ),
    (
        "all caches are held for the sum",
        "pool/in_use.rs",
        "let now = self.in_use.total.load(",
        "if broken(\"all caches are held for the sum\") {
            held.clear();
        }
        let now = self.in_use.total.load(",
    ),
    (
        "a charge is looked at where it may be a peak",
        "pool/in_use.rs",
        "if total > self.in_use.peak() as i64 {",
        "if total > self.in_use.peak() as i64 && !broken(\"a charge is looked at where it may be a peak\") {",
    ),
    (
        "what is freed after a cover is not covered",
        "pool/settle.rs",
        "inner.next_stamp += 1;",
        "inner.next_stamp += u64::from(!broken(\"what is freed after a cover is not covered\"));",
    ),
    (
        "what is freed after a stamp is not stamped",
        "pool/join.rs",
        "inner.next_stamp = number + 1;",
        "inner.next_stamp = number + u64::from(!broken(\"what is freed after a stamp is not stamped\"));",
    ),
    (
        "a hit compares the stream's id",
        "allocator/mod.rs",
        ".filter(|generation| generation.id == id)",
        ".filter(|generation| generation.id == id || broken(\"a hit compares the stream's id\"))",
    ),
    (
        "a closed pool is left alone",
        "pool/mod.rs",
        "        if self.closed {\n            return Err(Error::Dead(",
        "        if self.closed && !broken(\"a closed pool is left alone\") {\n            return Err(Error::Dead(",
    ),
    (
        "a free counts its block under the lock that files it",
        "pool/free.rs",
        "        let mut core = self.core.lock();
        self.now_pending(size);
        self.bury_graphs(&mut core);
        let Some(freed)",
        "        let early = broken(\"a free counts its block under the lock that files it\");
        if early {
            self.now_pending(size);
        }
        let mut core = self.core.lock();
        if !early {
            self.now_pending(size);
        }
        self.bury_graphs(&mut core);
        let Some(freed)",
    ),
    (
        "a close judges under the lock",
        "pool/admin.rs",
        "        self.is_unused(&self.core.lock())",
        "        if broken(\"a close judges under the lock\") {
            return self.in_use() == 0;
        }
        self.is_unused(&self.core.lock())",
    ),
    (
        "a close looks for dedicated blocks",
        "pool/admin.rs",
        "self.in_use() == 0 && self.beside.all().next().is_none()",
        "self.in_use() == 0
            && (broken(\"a close looks for dedicated blocks\") || self.beside.all().next().is_none())",
    ),
];
