use trtalloc::driver::sim::model::code::*;
use trtalloc::driver::sim::{Addresses, SimConfig};

use crate::sim::{MIB, machine, machine_with};

const G: u64 = 2 * MIB;

fn config(addresses: Addresses) -> SimConfig {
    SimConfig {
        addresses,
        ..SimConfig::default()
    }
}

#[test]
fn memory_follows_the_address_policy() {
    let m = machine_with(config(Addresses::Ascending));
    let (a, b) = (m.memory_malloc(G).unwrap(), m.memory_malloc(G).unwrap());
    assert_eq!((a % G, b), (0, a + G));
    let (a, b) = (m.memory_host_malloc(700).unwrap(), m.memory_host_malloc(G).unwrap());
    assert_eq!(b, a + 1024);
    let m = machine_with(config(Addresses::Descending));
    let (a, b) = (m.memory_malloc(G).unwrap(), m.memory_malloc(G).unwrap());
    assert_eq!(b + G, a);
    let m = machine_with(config(Addresses::Returning));
    let (a, b) = (m.memory_malloc(G).unwrap(), m.memory_malloc(G).unwrap());
    m.memory_free(a).unwrap();
    assert_eq!(m.memory_malloc(MIB), Ok(a));
    m.memory_free(b).unwrap();
    let m = machine_with(config(Addresses::Odd));
    assert_eq!(m.memory_malloc(G).unwrap() % 512, 256);
}

#[test]
fn reservations_can_be_adjacent_and_reused() {
    let m = machine_with(config(Addresses::Ascending));
    let first = m.memory_reserve(4 * G, 0).unwrap();
    // The host may use this place itself; then the reservation lies elsewhere.
    let found: Vec<u64> = (0..4).map(|_| m.memory_reserve(4 * G, 0).unwrap()).collect();
    let mut all = [&[first][..], &found].concat();
    all.sort_unstable();
    assert!(all.windows(2).all(|two| two[0] + 4 * G <= two[1]));
    let m = machine_with(config(Addresses::Returning));
    let at = m.memory_reserve(4 * G, 64 * G).unwrap();
    m.memory_unreserve(at, 4 * G).unwrap();
    assert_eq!(m.memory_reserve(2 * G, 64 * G).unwrap() % (64 * G), 0);
}

#[test]
fn neighbours_in_one_page_keep_their_contents() {
    for plain in [true, false] {
        let m = machine_with(config(Addresses::Ascending));
        let take = || match plain {
            true => m.memory_malloc(512).unwrap(),
            false => m.memory_host_malloc(512).unwrap(),
        };
        let give = |at| match plain {
            true => m.memory_free(at).unwrap(),
            false => m.memory_host_free(at).unwrap(),
        };
        let context = m.primary_retain(0).unwrap();
        m.context_push(context).unwrap();
        let blocks = [0; 20].map(|_| take());
        for (n, block) in blocks.iter().enumerate() {
            m.write(*block, &[n as u8; 512]).unwrap();
        }
        for block in blocks.iter().step_by(2) {
            give(*block);
            assert_eq!(m.read(*block, &mut [0; 1]), Err(INVALID_VALUE), "it was freed");
        }
        for (n, block) in blocks.iter().enumerate().skip(1).step_by(2) {
            let mut found = [0; 512];
            m.read(*block, &mut found).unwrap();
            assert_eq!(found, [n as u8; 512]);
            give(*block);
        }
    }
}

#[test]
fn hand_out_over_two_allocations_is_a_violation() {
    let m = machine_with(config(Addresses::Ascending));
    let (a, b) = (m.memory_malloc(G).unwrap(), m.memory_malloc(G).unwrap());
    assert_eq!(b, a + G);
    let checker = m.checker();
    checker.hand_out(a, G, None);
    checker.hand_out(b, 512, None);
    assert_eq!(checker.violations(), Vec::<String>::new());
    checker.give_back(a, None);
    checker.give_back(b, None);
    checker.hand_out(a + MIB, G, None);
    assert!(
        checker.violations()[0].contains("beyond one allocation"),
        "{:?}",
        checker.violations()
    );
    checker.clear_violations();
    let host = m.memory_host_malloc(G).unwrap();
    checker.hand_out(host + MIB, G, None);
    assert!(
        checker.violations()[0].contains("beyond one allocation"),
        "{:?}",
        checker.violations()
    );
}

#[test]
fn other_processes_reduce_free_memory() {
    let m = machine();
    let total = m.config().memory;
    let held = m.memory_malloc(G).unwrap();
    assert_eq!(m.others_hold(0, total), Ok(total - G), "used memory stays used");
    assert_eq!(m.memory_info(0), Ok((0, total)));
    assert_eq!(m.memory_malloc(512), Err(OUT_OF_MEMORY));
    assert_eq!(m.memory_create(0, G), Err(OUT_OF_MEMORY));
    m.memory_free(held).unwrap();
    assert_eq!(m.memory_info(0), Ok((G, total)));
    m.memory_create(0, G).unwrap();
    assert_eq!(m.others_hold(0, MIB), Ok(MIB));
    assert_eq!(m.memory_info(0), Ok((total - G - MIB, total)));
    assert_eq!(m.others_hold(1, 0), Err(INVALID_DEVICE));
}
