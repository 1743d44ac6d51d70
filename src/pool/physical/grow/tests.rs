use super::*;
use crate::driver::Driver;
use crate::driver::sim::{SimConfig, SimDriver};

const MIB: u64 = 1 << 20;

/// Memory that no other thread uses.
struct Unshared(PhysicalMemory, FreeSpace);

impl Locked for Unshared {
    fn parts(&mut self) -> (&mut PhysicalMemory, &mut FreeSpace) {
        (&mut self.0, &mut self.1)
    }

    fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        work()
    }
}

#[test]
fn cached_handle_is_taken_once() {
    for (cached, need, reserved) in [
        (&[2][..], 4, 4),
        (&[2, 2], 6, 6),
        (&[2, 4], 4, 6),
        // A larger handle is used only where the request leaves little of it unused.
        (&[66], 64, 66),
        (&[2, 132], 128, 134),
        (&[4], 2, 6),
        (&[2, 8], 4, 12),
    ] {
        let driver = SimDriver::new(SimConfig::default());
        let calls = Arc::new(DriverCalls::new(driver.clone(), false));
        let (page, size) = (2 * MIB, 512 * MIB);
        let base = driver.reserve(size, page).unwrap();
        let space = Arc::new(AddressSpace::reserved(base, size, 512));
        let free_space = FreeSpace::new(size, 512, page);
        let (access, recorder) = (vec![0], Arc::default());
        let physical = PhysicalMemory::new(calls, space, 0, page, HandleKind::default(), access, recorder);
        let mut memory = Unshared(physical, free_space);
        let Unshared(physical, _) = &mut memory;
        let made = cached.iter().map(|size| physical.create_handle(size * MIB).unwrap());
        let made: Vec<Handle> = made.collect();
        for (size, handle) in cached.iter().zip(made) {
            physical.keep(handle, size * MIB);
        }
        let sources = Sources {
            remap: false,
            create: u64::MAX,
            complete: None,
            exchange: false,
            ahead: None,
        };
        let grown = grow(&mut memory, COMMON, (need * MIB, 512), sources, || true);
        let Unshared(physical, free_space) = &mut memory;
        assert_eq!(grown, Ok(Grown::At(0, COMMON)));
        assert!(free_space.take(COMMON, need * MIB, 512).is_some(), "{cached:?}");
        assert_eq!(physical.reserved(), reserved * MIB, "{cached:?} for {need}");
        assert_eq!(physical.mapped() + physical.cached_bytes(), physical.reserved());
    }
}
