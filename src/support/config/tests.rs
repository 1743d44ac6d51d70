//! Options as text and in the environment, valid and invalid.

use std::ffi::OsString;

use super::*;
use crate::driver::{ascend, cuda, none, sim};

fn budget(directory: Option<&str>, name: &str, bytes: u64) -> Option<ShareBudget> {
    Some(ShareBudget {
        directory: directory.map(Into::into),
        name: name.to_owned(),
        bytes,
    })
}

/// The defaults with one change.
fn with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

#[test]
fn valid_options_are_parsed() {
    let record = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    let table: Vec<(&str, Config)> = vec![
        ("", Config::default()),
        (" , ,, ", Config::default()),
        ("driver=sim", with(|c| c.driver = DriverChoice::Named(&sim::DRIVER))),
        ("driver=cuda", with(|c| c.driver = DriverChoice::Named(&cuda::DRIVER))),
        (
            "driver=ascend",
            with(|c| c.driver = DriverChoice::Named(&ascend::DRIVER)),
        ),
        ("driver=none", with(|c| c.driver = DriverChoice::Named(&none::DRIVER))),
        ("driver=auto", Config::default()),
        (
            "  DRIVER = Sim ,, device= 3 ,",
            with(|c| (c.driver, c.device) = (DriverChoice::Named(&sim::DRIVER), Some(3))),
        ),
        ("device=-1", Config::default()),
        ("device=4,device=current", Config::default()),
        ("device=0", with(|c| c.device = Some(0))),
        ("limit=4096", with(|c| c.limit = Limit::Bytes(4096))),
        ("limit=1k", with(|c| c.limit = Limit::Bytes(1 << 10))),
        ("limit=2KiB", with(|c| c.limit = Limit::Bytes(2 << 10))),
        ("limit=512M", with(|c| c.limit = Limit::Bytes(512 << 20))),
        ("limit=3mib", with(|c| c.limit = Limit::Bytes(3 << 20))),
        ("limit=4GiB", with(|c| c.limit = Limit::Bytes(4 << 30))),
        ("limit=4 g", with(|c| c.limit = Limit::Bytes(4 << 30))),
        ("limit=2T", with(|c| c.limit = Limit::Bytes(2 << 40))),
        ("limit=1TIB", with(|c| c.limit = Limit::Bytes(1 << 40))),
        ("limit=7KB", with(|c| c.limit = Limit::Bytes(7_000))),
        ("limit=500MB", with(|c| c.limit = Limit::Bytes(500_000_000))),
        ("limit=4GB", with(|c| c.limit = Limit::Bytes(4_000_000_000))),
        ("limit=4 gb", with(|c| c.limit = Limit::Bytes(4_000_000_000))),
        ("limit=2tb", with(|c| c.limit = Limit::Bytes(2_000_000_000_000))),
        ("limit=1.5GB", with(|c| c.limit = Limit::Bytes(1_500_000_000))),
        ("limit=0.0005MB", with(|c| c.limit = Limit::Bytes(500))),
        (
            "limit=18446744TB",
            with(|c| c.limit = Limit::Bytes(18_446_744_000_000_000_000)),
        ),
        ("sim_memory=8GB", with(|c| c.sim_memory = 8_000_000_000)),
        (
            "release_threshold=64MB",
            with(|c| c.release_threshold = ReleaseThreshold::Bytes(64_000_000)),
        ),
        ("limit=1.5GiB", with(|c| c.limit = Limit::Bytes(3 << 29))),
        ("limit=18446744073709551615", with(|c| c.limit = Limit::Bytes(u64::MAX))),
        ("limit=80%", with(|c| c.limit = Limit::Percent(80.0))),
        ("limit=12.5 %", with(|c| c.limit = Limit::Percent(12.5))),
        ("limit=100%", with(|c| c.limit = Limit::Percent(100.0))),
        ("limit=1G,limit=none", Config::default()),
        ("headroom=2GiB", with(|c| c.headroom = Limit::Bytes(2 << 30))),
        ("headroom=10%", with(|c| c.headroom = Limit::Percent(10.0))),
        ("headroom=1G,headroom=0", Config::default()),
        ("reserve=2GiB", with(|c| c.reserve = Limit::Bytes(2 << 30))),
        ("reserve=10%", with(|c| c.reserve = Limit::Percent(10.0))),
        ("reserve=1G,reserve=0", Config::default()),
        ("limit=1G,limit=0", Config::default()),
        ("limit=1G,limit=2G", with(|c| c.limit = Limit::Bytes(2 << 30))),
        (
            "share_budget=Jobs-1.a:4GiB",
            with(|c| c.share_budget = budget(None, "Jobs-1.a", 4 << 30)),
        ),
        (
            "share_budget = /mnt/Gpu budgets/jobs : 500MB",
            with(|c| c.share_budget = budget(Some("/mnt/Gpu budgets/"), "jobs", 500_000_000)),
        ),
        (
            "share_budget=/jobs:2M",
            with(|c| c.share_budget = budget(Some("/"), "jobs", 2 << 20)),
        ),
        ("share_budget=jobs:4G,share_budget=None", Config::default()),
        (
            "sim_shared=/tmp/The devices",
            with(|c| c.sim_shared = Some("/tmp/The devices".into())),
        ),
        ("backing=vmm", with(|c| c.backing = Backing::Vmm)),
        ("backing=malloc", with(|c| c.backing = Backing::Malloc)),
        (
            "release_threshold=all",
            with(|c| c.release_threshold = ReleaseThreshold::All),
        ),
        (
            "release_threshold=0",
            with(|c| c.release_threshold = ReleaseThreshold::Bytes(0)),
        ),
        (
            "release_threshold=64M",
            with(|c| c.release_threshold = ReleaseThreshold::Bytes(64 << 20)),
        ),
        ("release_threshold=auto", Config::default()),
        ("streams=trusted", with(|c| c.streams_trusted = true)),
        ("streams=trusted,streams=checked", Config::default()),
        ("peers=auto", with(|c| c.peers = Peers::Auto)),
        ("peers=0:2:3", with(|c| c.peers = Peers::List(vec![0, 2, 3]))),
        ("peers=1", with(|c| c.peers = Peers::List(vec![1]))),
        ("peers=1,peers=none", Config::default()),
        ("share=fd", with(|c| c.share = Share::Fd)),
        ("share=FABRIC", with(|c| c.share = Share::Fabric)),
        ("rdma=1", with(|c| c.rdma = true)),
        ("kind=pinned", with(|c| c.kind = Kind::Pinned)),
        ("rule=ascend", with(|c| c.rule = Rule::Ascend)),
        ("rule=ascend-media", with(|c| c.rule = Rule::AscendMedia)),
        ("rule=ascend-host", with(|c| c.rule = Rule::AscendHost)),
        ("pad=0", with(|c| c.pad = 0)),
        ("pad=16", with(|c| c.pad = 16)),
        ("wait_ms=0", with(|c| c.wait_ms = 0)),
        ("wait_ms=15000", with(|c| c.wait_ms = 15000)),
        ("retry_ms=250", with(|c| c.retry_ms = 250)),
        ("decay_ms=0", with(|c| c.decay_ms = 0)),
        ("captures=yes", with(|c| c.captures = true)),
        ("history=All", with(|c| c.record = record("history", "all"))),
        ("history=all,history=off", with(|c| c.record = record("history", "off"))),
        ("context=alloc", with(|c| c.record = record("context", "alloc"))),
        ("stacks=native", with(|c| c.record = record("stacks", "native"))),
        ("max_entries=1000", with(|c| c.record = record("max_entries", "1000"))),
        (
            "snapshot_on_oom=/tmp/Oom-%p.pickle",
            with(|c| c.snapshot_on_oom = Some("/tmp/Oom-%p.pickle".into())),
        ),
        (
            "snapshot_at_exit=a=b.html",
            with(|c| c.snapshot_at_exit = Some("a=b.html".into())),
        ),
        ("stats=yes", with(|c| c.stats = true)),
        ("log=off", with(|c| c.log = LogLevel::Off)),
        ("log=error", with(|c| c.log = LogLevel::Error)),
        ("log=Info", with(|c| c.log = LogLevel::Info)),
        ("log=debug", with(|c| c.log = LogLevel::Debug)),
        ("log=trace", with(|c| c.log = LogLevel::Trace)),
        ("passthrough=on", with(|c| c.passthrough = true)),
        ("guard=TRUE", with(|c| c.guard = true)),
        ("guard=1,guard=no", Config::default()),
        ("guard=1,guard=off", Config::default()),
        ("guard=1,guard=false", Config::default()),
        ("guard=1,guard=0", Config::default()),
        ("fill=165", with(|c| c.fill = Some(165))),
        ("fill=0", with(|c| c.fill = Some(0))),
        ("fill=0xA5", with(|c| c.fill = Some(0xa5))),
        ("fill=1,fill=none", Config::default()),
        ("inject=1", with(|c| c.inject = true)),
        ("disable=1", with(|c| c.disable = true)),
        ("sim_memory=1GiB", with(|c| c.sim_memory = 1 << 30)),
        ("sim_devices=4", with(|c| c.sim_devices = 4)),
        ("sim_driver=11.2", with(|c| c.sim_driver = 11_020)),
        ("sim_driver=12.4", with(|c| c.sim_driver = 12_040)),
        ("sim_latency=A100", with(|c| c.sim_latency = Latencies::A100)),
        ("sim_latency=a100,sim_latency=short", Config::default()),
        ("sim_integrated=2GiB", with(|c| c.sim_integrated = Some(2 << 30))),
        ("sim_integrated=0", with(|c| c.sim_integrated = Some(0))),
        ("sim_integrated=1G,sim_integrated=none", Config::default()),
    ];
    for (options, expected) in table {
        match Config::parse(options) {
            Ok(config) => assert_eq!(config, expected, "{options}"),
            Err(error) => panic!("{options}: {error}"),
        }
    }
}

#[test]
fn invalid_option_is_named_in_the_error() {
    let table = [
        ("limit", "`limit` is not key=value"),
        ("guard=1,oops", "`oops` is not key=value"),
        ("=1", "unknown option ``"),
        ("limitt=1G", "unknown option `limitt`: the nearest is `limit`"),
        ("guard=1,colour=red", "unknown option `colour`: the nearest is `"),
        (
            "driver=opencl",
            "option `driver`: cannot read `opencl` (auto, cuda, ascend, sim or none)",
        ),
        ("device=-2", "option `device`: cannot read `-2`"),
        ("device=+2", "option `device`: cannot read `+2`"),
        ("device=2147483648", "option `device`"),
        ("device=", "option `device`: cannot read ``"),
        ("limit=", "option `limit`: cannot read ``"),
        ("limit=G", "option `limit`: cannot read `G`"),
        ("limit=4B", "option `limit`: cannot read `4B`"),
        ("limit=4GBs", "option `limit`: cannot read `4GBs`"),
        ("limit=4G B", "option `limit`"),
        ("limit=GB", "option `limit`: cannot read `GB`"),
        ("limit=-4GB", "option `limit`: cannot read `-4GB`"),
        ("limit=80%GB", "option `limit`"),
        (
            "limit=18446745TB",
            "option `limit`: cannot read `18446745TB` (bytes as 512M, 4GiB or 4GB up to 16 EiB",
        ),
        ("limit=18446745.0TB", "option `limit`"),
        ("limit=-1", "option `limit`: cannot read `-1`"),
        ("limit=1.5", "option `limit`: cannot read `1.5`"),
        ("limit=.5G", "option `limit`"),
        ("limit=5.G", "option `limit`"),
        ("limit=1e3M", "option `limit`"),
        ("limit=0%", "option `limit`"),
        ("limit=100.5%", "option `limit`"),
        ("limit=%", "option `limit`"),
        ("limit=nan%", "option `limit`"),
        ("limit=18446744073709551616", "option `limit`"),
        ("limit=16777216T", "option `limit`"),
        ("limit=16777216.0T", "option `limit`"),
        ("limit=1٣", "option `limit`"),
        ("limit=4Gí", "option `limit`"),
        (
            "backing=mmap",
            "option `backing`: cannot read `mmap` (auto, vmm or malloc)",
        ),
        (
            "share_budget=jobs",
            "option `share_budget`: cannot read `jobs` (NAME:BYTES",
        ),
        ("share_budget=:4G", "option `share_budget`"),
        ("share_budget=jobs:", "option `share_budget`"),
        ("share_budget=jobs:0", "option `share_budget`"),
        ("share_budget=jobs:2MB", "option `share_budget`"),
        ("share_budget=jobs:50%", "option `share_budget`"),
        ("share_budget=../jobs:4G", "option `share_budget`"),
        ("share_budget=/dir/..:4G", "option `share_budget`"),
        ("share_budget=/dir/:4G", "option `share_budget`"),
        ("share_budget=a job:4G", "option `share_budget`"),
        ("release_threshold=some", "option `release_threshold`"),
        ("streams=1", "option `streams`"),
        ("peers=", "option `peers`"),
        ("peers=0:", "option `peers`"),
        ("peers=0+1", "option `peers`"),
        ("share=yes", "option `share`"),
        (
            "rdma=2",
            "option `rdma`: cannot read `2` (1, 0, true, false, yes, no, on or off)",
        ),
        ("kind=host", "option `kind`"),
        ("rule=ascend_media", "option `rule`"),
        ("pad=8", "option `pad`: cannot read `8` (0, 16 or 32)"),
        ("wait_ms=2s", "option `wait_ms`"),
        ("retry_ms=-1", "option `retry_ms`"),
        ("decay_ms=never", "option `decay_ms`"),
        ("history=on", "option `history`"),
        ("context=some", "option `context`"),
        ("stacks=1", "option `stacks`"),
        ("max_entries=many", "option `max_entries`"),
        (
            "max_entries=0",
            "option `max_entries`: cannot read `0` (a number from 1 to 67108864)",
        ),
        ("max_entries=67108865", "option `max_entries`"),
        ("snapshot_on_oom=", "option `snapshot_on_oom`"),
        (
            "snapshot_on_oom=/tmp/memory.txt",
            "option `snapshot_on_oom`: cannot read `/tmp/memory.txt` (a path that ends in .pickle, .json or .html)",
        ),
        ("snapshot_at_exit=/tmp/pickle", "option `snapshot_at_exit`"),
        ("snapshot_at_exit=/tmp/.pickle", "option `snapshot_at_exit`"),
        ("log=verbose", "option `log`"),
        ("fill=256", "option `fill`"),
        ("fill=0x", "option `fill`"),
        ("fill=0x+1", "option `fill`"),
        ("sim_memory=0", "option `sim_memory`"),
        ("sim_memory=9TiB", "option `sim_memory`"),
        ("sim_devices=0", "option `sim_devices`"),
        ("sim_integrated=yes", "option `sim_integrated`"),
        ("sim_driver=12.0", "option `sim_driver`"),
        ("sim_shared=devices", "option `sim_shared`"),
        (
            "sim_latency=h100",
            "option `sim_latency`: cannot read `h100` (short or a100)",
        ),
    ];
    for (options, named) in table {
        match Config::parse(options) {
            Err(Error::InvalidArgument(text)) => assert!(text.contains(named), "{options}: {text}"),
            other => panic!("{options}: {other:?}"),
        }
    }
}

#[test]
fn every_key_can_be_set_and_has_its_variable() {
    for key in KEYS {
        assert!(Config::default().set(key, "\u{1}").is_err(), "{key}");
        let value = [
            "1",
            "11.8",
            "sim",
            "vmm",
            "trusted",
            "fd",
            "pinned",
            "cuda",
            "16",
            "all",
            "off",
            "short",
            "jobs:4G",
            "/tmp/devices",
            "memory.pickle",
        ]
        .into_iter()
        .find(|value| Config::default().set(key, value).is_ok());
        assert!(value.is_some(), "no value for {key}");
        let name = format!("TRTALLOC_{}", key.to_ascii_uppercase());
        let (_, unread) = Config::from_variables(|asked| (asked == name).then(|| value.unwrap_or_default().into()));
        assert!(unread.is_empty(), "{unread:?}");
    }
}

/// The environment's options under these variables.
fn environment(variables: &[(&str, &str)]) -> (Config, Vec<String>) {
    let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
    Config::from_variables(|name| value(name).map(|(_, value)| value.into()))
}

#[test]
fn invalid_variable_leaves_the_default() {
    let (config, unread) = environment(&[
        ("TRTALLOC_SHARE", "lots"),
        ("TRTALLOC_GUARD", "yes"),
        ("TRTALLOC_FILL", " "),
        ("TRTALLOC_WAIT_MS", "77"),
    ]);
    assert_eq!(config, with(|c| (c.guard, c.wait_ms) = (true, 77)));
    assert_eq!(unread.len(), 1);
    assert!(unread[0].contains("TRTALLOC_SHARE: cannot read `lots`"), "{unread:?}");
    assert!(unread[0].ends_with("; the default holds"), "{unread:?}");
    assert!(config.bounds_hold().is_ok());
}

/// As a file's name may be, and as the folder of a program that `trtalloc run` starts.
#[test]
fn path_in_the_environment_is_of_any_bytes() {
    use std::os::unix::ffi::OsStringExt;
    let path = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let (config, unread) = Config::from_variables(|name| match name {
        "TRTALLOC_SNAPSHOT_AT_EXIT" => Some(path(b"/a\xff/%p%%p.%.pickle")),
        "TRTALLOC_SNAPSHOT_ON_OOM" => Some(path(b"\xff.txt")),
        "TRTALLOC_LOG" => Some(path(b"info\xff")),
        "TRTALLOC_SHARE_BUDGET" => Some(path(b"/a\xff/jobs:4G")),
        _ => None,
    });
    let id = std::process::id();
    let expected = [b"/a\xff/", format!("{id}%{id}.%.pickle").as_bytes()].concat();
    assert_eq!(
        config.snapshot_path("snapshot_at_exit"),
        Some(OsString::from_vec(expected).into())
    );
    assert_eq!(
        (config.snapshot_path("snapshot_on_oom"), config.log),
        (None, LogLevel::default())
    );
    assert!(config.bounds_hold().is_err());
    assert_eq!(unread.len(), 3, "{unread:?}");
}

#[test]
fn unreadable_limit_refuses_every_request() {
    for value in ["lots", "4GBs", "-1", "18446745TB", "101%"] {
        let (mut config, unread) = environment(&[("TRTALLOC_LIMIT", value), ("TRTALLOC_GUARD", "1")]);
        assert!(config.guard);
        assert_eq!(unread.len(), 1);
        assert!(unread[0].ends_with("; every request fails"), "{unread:?}");
        let reason = config.bounds_hold().unwrap_err().to_string();
        assert!(
            reason.contains(&format!("TRTALLOC_LIMIT: cannot read `{value}`")),
            "{reason}"
        );
        // Another invalid option changes nothing; a valid one replaces the limit.
        assert!(config.set("limit", "much").is_err());
        assert!(config.bounds_hold().is_err());
        config.set("guard", "0").unwrap();
        assert!(config.bounds_hold().is_err());
        config.set("Limit", "none").unwrap();
        assert!(config.bounds_hold().is_ok());
    }
    let (config, unread) = environment(&[("TRTALLOC_LIMIT", " ")]);
    assert_eq!((config, unread.len()), (Config::default(), 0));
}

#[test]
fn unreadable_budget_refuses_every_request_for_memory_of_a_device() {
    let over = |options, memory| Config::over(environment(&[("TRTALLOC_SHARE_BUDGET", "jobs")]).0, options, memory);
    let reason = over("", MemoryFrom::Driver)
        .unwrap()
        .bounds_hold()
        .unwrap_err()
        .to_string();
    assert!(reason.contains("TRTALLOC_SHARE_BUDGET: cannot read `jobs`"), "{reason}");
    for (options, memory) in [
        ("", MemoryFrom::Caller),
        ("kind=pinned", MemoryFrom::Driver),
        ("share_budget=jobs:1G", MemoryFrom::Driver),
    ] {
        assert!(over(options, memory).unwrap().bounds_hold().is_ok(), "{options}");
    }
}

#[test]
fn options_in_code_win_over_the_environment() {
    let variables = [
        ("TRTALLOC_LIMIT", "4GiB"),
        ("TRTALLOC_GUARD", "1"),
        ("TRTALLOC_HISTORY", "all"),
        ("TRTALLOC_WAIT_MS", "5"),
    ];
    let over = |options| Config::over(environment(&variables).0, options, MemoryFrom::Driver);
    assert_eq!(over("").unwrap(), environment(&variables).0);
    let config = over("limit=1GiB,wait_ms=7,history=off").unwrap();
    assert_eq!((config.limit, config.wait_ms), (Limit::Bytes(1 << 30), 7));
    assert!(config.guard && config.history().unwrap().mode == history::RecordingMode::Off);
    assert_eq!(over("limit=none").unwrap().limit, Limit::None);
    assert!(matches!(over("limit=much"), Err(Error::InvalidArgument(_))));
    // An unreadable limit is replaced by one in code, and by nothing else.
    let over = |options| {
        let config = environment(&[("TRTALLOC_LIMIT", "much")]).0;
        Config::over(config, options, MemoryFrom::Caller).unwrap().bounds_hold()
    };
    assert!(over("").is_err() && over("guard=0").is_err() && over("limit=1GiB").is_ok());
}

#[test]
fn environment_does_not_ask_for_what_cannot_be() {
    let variables = [
        ("TRTALLOC_PASSTHROUGH", "1"),
        ("TRTALLOC_GUARD", "1"),
        ("TRTALLOC_FILL", "7"),
        ("TRTALLOC_HEADROOM", "much"),
        ("TRTALLOC_SHARE_BUDGET", "much"),
        ("TRTALLOC_BACKING", "vmm"),
        ("TRTALLOC_PEERS", "auto"),
        ("TRTALLOC_SHARE", "fd"),
        ("TRTALLOC_RDMA", "1"),
        ("TRTALLOC_LIMIT", "50%"),
        ("TRTALLOC_RESERVE", "10%"),
        ("TRTALLOC_WAIT_MS", "5"),
    ];
    let over = |options, memory| Config::over(environment(&variables).0, options, memory).unwrap();
    let brought = over("", MemoryFrom::Caller);
    assert!(!brought.passthrough && !brought.guard && brought.fill.is_none() && brought.bounds_hold().is_ok());
    assert_eq!((brought.limit, brought.wait_ms), (Limit::Percent(50.0), 5));
    // What the code asks for is refused where it is refused without an environment.
    assert!(over("guard=1", MemoryFrom::Caller).guard);
    let pinned = over("kind=pinned", MemoryFrom::Driver);
    let expected = with(|c| {
        c.kind = Kind::Pinned;
        c.passthrough = true;
        c.wait_ms = 5;
    });
    assert_eq!(pinned, expected);
    assert!(over("", MemoryFrom::Driver).bounds_hold().is_err());
    // The driver's malloc gives peers no access.
    assert_eq!(over("passthrough=0", MemoryFrom::Driver).peers, Peers::Auto);
    for (options, named) in [
        ("backing=malloc", "backing=malloc,peers=1"),
        ("passthrough=1", "passthrough=1,peers=1"),
    ] {
        assert_eq!(over(options, MemoryFrom::Driver).peers, Peers::None, "{options}");
        let both = over(named, MemoryFrom::Driver);
        assert_eq!(both.peers, Peers::List(vec![1]), "{options}");
    }
}

#[test]
fn misspelt_variable_has_a_nearest_option() {
    for name in [
        "TRTALLOC_LIMIT",
        "TRTALLOC_SNAPSHOT_AT_EXIT",
        "TRTALLOC_LIBRARY",
        "TRTALLOC_TEST_DRIVER",
    ] {
        assert_eq!(nearest_option(name), None, "{name}");
    }
    for name in [
        "TRTALLOC_STRESS_SEED",
        "TRTALLOC_BLESS",
        "__TRTALLOC_RUN_STATISTICS",
        "PATH",
        "TRTALLOC",
        "",
        "trtalloc_limti",
    ] {
        assert_eq!(nearest_option(name), None, "{name}");
    }
    for (name, nearest) in [
        ("TRTALLOC_LIMTI", "limit"),
        ("TRTALLOC_LIMITS", "limit"),
        ("TRTALLOC_MEMORY_LIMIT", "limit"),
        ("TRTALLOC_limit", "limit"),
        ("TRTALLOC_GAURD", "guard"),
        ("TRTALLOC_SNAPSHOT_ON_EXIT", "snapshot_at_exit"),
        ("TRTALLOC_SNAPSHOT_AT_OOM", "snapshot_on_oom"),
        ("TRTALLOC_WAIT", "wait_ms"),
        ("TRTALLOC_RELEASE_TRESHOLD", "release_threshold"),
    ] {
        assert_eq!(nearest_option(name), Some(nearest), "{name}");
    }
}

#[test]
fn python_package_has_every_key() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/python/trtalloc/_options.py");
    let text = std::fs::read_to_string(path).unwrap();
    let between = |from: &str| {
        text.split_once(from)
            .and_then(|(_, rest)| rest.split_once(')'))
            .unwrap()
            .0
    };
    let names = |from: &str| -> Vec<String> {
        let quoted = between(from).split('"').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    };
    assert_eq!(names("KEYS = ("), KEYS);
    assert_eq!(names("OTHERS = ("), environment::OTHERS);
    assert_eq!(names("OTHER_PREFIXES = ("), environment::OTHER_PREFIXES);
}

#[test]
fn failed_resize_changes_nothing() {
    let mut config = with(|c| c.limit = Limit::Bytes(1));
    assert!(config.set("limit", "much").is_err());
    assert_eq!(config, with(|c| c.limit = Limit::Bytes(1)));
}
