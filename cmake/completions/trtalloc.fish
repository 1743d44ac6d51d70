# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_trtalloc_global_optspecs
    string join \n h/help V/version
end

function __fish_trtalloc_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_trtalloc_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_trtalloc_using_subcommand
    set -l cmd (__fish_trtalloc_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c trtalloc -n "__fish_trtalloc_needs_command" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -s V -l version -d 'Print version'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "demo" -d 'Runs an application\'s memory use through TensorRT\'s interface: engines, contexts, streams, an engine swap under a limit'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "replay" -d 'Runs a trace of allocations (CSV: op,id,bytes[,stream[,thread[,time_us]]]; gzip is unpacked) and measures it, or tries settings on it'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "trace" -d 'Writes a generated trace, or what a program did according to a snapshot, as CSV'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "doctor" -d 'Reports which driver, devices, virtual memory and TensorRT libraries this machine has'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "bench" -d 'Measures the project\'s targets: a table of figures, targets and whether they are met'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "run" -d 'Runs a program with the allocator injected into the TensorRT it uses; its exit status is the program\'s'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "ctl" -d 'Looks into a running process and steers it; without arguments, lists the processes that can be reached'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "report" -d 'Summarises a snapshot: who held the memory, and why a request was refused; -o writes a page for a browser'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "compare" -d 'Compares two snapshots of one program: what is held more and less, by name, stack and size'
complete -c trtalloc -n "__fish_trtalloc_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l driver -d 'auto, cuda, ascend or sim' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l limit -d 'A limit on reserved memory: bytes, 4GiB, or a percentage of the device\'s' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l streams -d 'checked, or trusted: streams outlive the allocator and never capture' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l options -d 'Any other options, as key=value,key=value' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l snapshot -d 'Record everything, and write a snapshot at the end: .pickle (for PyTorch\'s memory viewer too), .json or .html' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l seed -d 'The seed for the requests\' shapes' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -l short -d 'Make a tenth of the requests'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand demo" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l driver -d 'auto, cuda, ascend or sim' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l limit -d 'A limit on reserved memory: bytes, 4GiB, or a percentage of the device\'s' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l streams -d 'checked, or trusted: streams outlive the allocator and never capture' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l options -d 'Any other options, as key=value,key=value' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l speed -d 'Divide the time between calls by this; the work keeps its length. A large number makes requests come as fast as the device completes them [default: 1]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l work-us -d 'How many microseconds of work a request queues; the default is the trace\'s time from its first allocation to its first free, and 2000 where the trace has no times' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l ahead -d 'How many requests of a stream the host queues before it waits for the first of them [default: 2]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l repeat -d 'How often the trace is run; each pass is a row of the table [default: 1, and 3 with --advise]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l cap -d 'Cap reserved memory at RATIO times the trace\'s peak in use, rounded up to whole handles' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l max-ratio -d 'Fail where reserved ÷ peak is above this in any pass' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l max-remaps -d 'Fail where the last pass remaps more than this for each thousand requests' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l snapshot -d 'Record everything, and write a snapshot at the end: .pickle (for PyTorch\'s memory viewer too), .json or .html' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l advise -d 'Try settings with the load of the trace, on simulated devices whose memory calls take as long as on an A100: what each costs and holds, and which one is worth it'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -l work -d 'Queue work on every block, so that memory is pending when it is freed; the simulated device checks every allocation'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand replay" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand trace" -s o -l output -d 'The file to write, compressed where its name ends in .gz; the default is stdout' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand trace" -l seed -d 'The same seed makes the same trace [default: 1]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand trace" -l device -d 'The device, where a snapshot has the history of several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand trace" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand doctor" -l pid -d 'Also inspects a running process: whether it has loaded trtalloc, and TensorRT' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand doctor" -l library -d 'Loads one library, prints its version and ends. The doctor runs this in a process of its own' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l driver -d 'auto, cuda, ascend or sim' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l limit -d 'A limit on reserved memory: bytes, 4GiB, or a percentage of the device\'s' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l streams -d 'checked, or trusted: streams outlive the allocator and never capture' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l options -d 'Any other options, as key=value,key=value' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l pairs -d 'How many pairs to time for each figure' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l library -d 'The library to measure; the default is the one in this command\'s folder' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -l only -d 'Measure only the groups whose name contains this, as `library` or `history`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -a "serve" -d 'Measures what the allocator costs a server on the simulated device: memory calls, device time, memory, waits'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and not __fish_seen_subcommand_from serve help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l driver -d 'auto, cuda, ascend or sim' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l limit -d 'A limit on reserved memory: bytes, 4GiB, or a percentage of the device\'s' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l streams -d 'checked, or trusted: streams outlive the allocator and never capture' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l options -d 'Any other options, as key=value,key=value' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l trace -d 'Run this trace instead of the generated workloads: its calls by stream, at its times, with work pending' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l speed -d 'Divide the time between calls by this; the work keeps its length. A large number makes requests come as fast as the device completes them [default: 1]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l work-us -d 'How many microseconds of work a request queues; the default is the trace\'s time from its first allocation to its first free, and 2000 where the trace has no times' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l ahead -d 'How many requests of a stream the host queues before it waits for the first of them [default: 2]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l repeat -d 'How often the trace is run; the first pass is not measured [default: 3]' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l requests -d 'How many requests of each stream are measured' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l warm -d 'How many requests of each stream come before those' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l seed -d 'Where the requests are drawn from' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l memory -d 'The simulated device\'s memory in GiB' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l cap -d 'A limit for each row, as a multiple of its needs' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l reserve-part -d 'A reserve for each row, as a multiple of its needs' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l rows -d 'Only rows whose workload has this text' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -l only-streams -d 'Only rows with so many streams' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from serve" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "serve" -d 'Measures what the allocator costs a server on the simulated device: memory calls, device time, memory, waits'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand bench; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l driver -d 'auto, cuda, ascend or sim' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l device -d 'The device\'s number; the default is the current device' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l limit -d 'A limit on reserved memory: bytes, 4GiB, or a percentage of the device\'s' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l headroom -d 'How much of the device\'s memory stays free for others, written as for --limit' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l reserve -d 'How much memory the pool obtains at its first request, and keeps, written as for --limit' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l share_budget -d 'NAME:BYTES: the user\'s processes with this NAME hold at most BYTES of a device together' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l backing -d 'auto, vmm (virtual memory) or malloc' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l release_threshold -d 'auto, all, or bytes: how much free memory the pool keeps' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l decay_ms -d 'After how many milliseconds free memory goes back to the driver; 0: never' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l streams -d 'checked, or trusted: streams outlive the allocator and never capture' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l captures -d '1: the process captures streams into graphs, maybe where the allocator cannot see it' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l peers -d 'none, auto, or the devices that may access the memory, as 0:1:3' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l share -d 'none, fd or fabric: how memory can be exported to other processes' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l rdma -d '1: the memory can be used for RDMA' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l kind -d 'device, or pinned: page-locked host memory' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l rule -d 'cuda, ascend, ascend-media or ascend-host: how requests are rounded' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l pad -d '0, 16 or 32: bytes after each block by Ascend\'s rules' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l wait_ms -d 'How many milliseconds a request waits for pending memory before it is refused' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l retry_ms -d 'How many milliseconds a request waits for other threads to free memory before it is refused' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l history -d 'off, state or all: what is recorded for snapshots' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l context -d 'none, state, alloc or all: what is recorded with a stack' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l stacks -d 'none, native, python or all: which frames a stack has' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l max_entries -d 'How many of the last events are kept' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l snapshot_on_oom -d 'Where a snapshot is written when a request is first refused: .pickle, .json or .html; %p is the process' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l snapshot_at_exit -d 'The same as --snapshot' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l stats -d 'A summary on stderr at the program\'s end' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l control -d '1, the default: `trtalloc ctl` can look into the program and steer it; 0: it cannot' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l log -d 'off, error, warn, info, debug or trace' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l passthrough -d '1: every request is a driver allocation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l guard -d '1: an unmapped page after each block' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l fill -d 'A byte, as 165 or 0xa5, with which new and freed memory is filled' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l inject -d '1: TensorRT\'s objects get the allocator; a preloaded library gives it to them in any case' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l disable -d '1: the library does nothing' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l sim_memory -d 'The simulated device\'s memory in bytes, or as 24GiB' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l sim_devices -d 'How many simulated devices there are' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l sim_driver -d '11.2, 11.8, 12.4 or 12.9: the simulated driver\'s version' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l sim_latency -d 'short, or a100: how long the simulated driver\'s calls take' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l sim_integrated -d 'Bytes that the host\'s programs use of an integrated simulated GPU\'s memory' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l sim_shared -d 'A file from the root: processes that name it share the memory of their simulated devices' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l snapshot -d 'Where a snapshot is written at the program\'s end: .pickle, .json or .html; %p is the process' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l options -d 'Any options, as key=value,key=value' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l library -d 'The library to preload; the default is the one in this command\'s folder, or installed with it' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l metrics -d 'Serves OpenMetrics of all processes of the run over HTTP: 9464 or :9464 on this machine only, or HOST:PORT' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -l metrics-file -d 'Writes the metrics of all processes to a file every 5 seconds and at the end, for node_exporter\'s textfile collector' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand run" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "stats" -d 'The statistics of each device'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "metrics" -d 'The statistics in the OpenMetrics text format'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "snapshot" -d 'Writes a snapshot: .pickle (for PyTorch\'s memory viewer too), .json or .html'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "history" -d 'Sets what is recorded: off, state or all, then ,context= ,stacks= ,max_entries= ,device='
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "trim" -d 'Gives back what is free, until at most KEEP stays reserved'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "limit" -d 'Limits reserved memory, or with --name what a name holds; 0 or none: no limit'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "tags" -d 'What each name holds'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and not __fish_seen_subcommand_from stats metrics snapshot history trim limit tags help" -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l json -d 'As JSON, one line for each device'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from stats" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from snapshot" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from snapshot" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from snapshot" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from snapshot" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from history" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from history" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from history" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from history" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from trim" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from trim" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from trim" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from trim" -l confirm -d 'Find out by context events what has completed. They end a capture that runs, unless the process is known to capture'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from trim" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from limit" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from limit" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from limit" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from limit" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from tags" -l allocator -d 'The allocator, where the process has several: they are numbered in the order of their creation' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from tags" -l device -d 'The device, where the process uses several' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from tags" -l name -d 'A model\'s name, or another tag: for `limit` and `tags`' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from tags" -l json -d 'As JSON, one line for each device'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from tags" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "stats" -d 'The statistics of each device'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "metrics" -d 'The statistics in the OpenMetrics text format'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "snapshot" -d 'Writes a snapshot: .pickle (for PyTorch\'s memory viewer too), .json or .html'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "history" -d 'Sets what is recorded: off, state or all, then ,context= ,stacks= ,max_entries= ,device='
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "trim" -d 'Gives back what is free, until at most KEEP stays reserved'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "limit" -d 'Limits reserved memory, or with --name what a name holds; 0 or none: no limit'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "tags" -d 'What each name holds'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand report" -s o -l output -d 'Write a page to look at in a browser' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand report" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand compare" -s o -l output -d 'Write a page to look at in a browser' -r -F
complete -c trtalloc -n "__fish_trtalloc_using_subcommand compare" -l rows -d 'How many rows each table has' -r
complete -c trtalloc -n "__fish_trtalloc_using_subcommand compare" -s h -l help -d 'Print help'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "demo" -d 'Runs an application\'s memory use through TensorRT\'s interface: engines, contexts, streams, an engine swap under a limit'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "replay" -d 'Runs a trace of allocations (CSV: op,id,bytes[,stream[,thread[,time_us]]]; gzip is unpacked) and measures it, or tries settings on it'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "trace" -d 'Writes a generated trace, or what a program did according to a snapshot, as CSV'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "doctor" -d 'Reports which driver, devices, virtual memory and TensorRT libraries this machine has'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "bench" -d 'Measures the project\'s targets: a table of figures, targets and whether they are met'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "run" -d 'Runs a program with the allocator injected into the TensorRT it uses; its exit status is the program\'s'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "ctl" -d 'Looks into a running process and steers it; without arguments, lists the processes that can be reached'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "report" -d 'Summarises a snapshot: who held the memory, and why a request was refused; -o writes a page for a browser'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "compare" -d 'Compares two snapshots of one program: what is held more and less, by name, stack and size'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and not __fish_seen_subcommand_from demo replay trace doctor bench run ctl report compare help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from bench" -f -a "serve" -d 'Measures what the allocator costs a server on the simulated device: memory calls, device time, memory, waits'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "stats" -d 'The statistics of each device'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "metrics" -d 'The statistics in the OpenMetrics text format'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "snapshot" -d 'Writes a snapshot: .pickle (for PyTorch\'s memory viewer too), .json or .html'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "history" -d 'Sets what is recorded: off, state or all, then ,context= ,stacks= ,max_entries= ,device='
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "trim" -d 'Gives back what is free, until at most KEEP stays reserved'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "limit" -d 'Limits reserved memory, or with --name what a name holds; 0 or none: no limit'
complete -c trtalloc -n "__fish_trtalloc_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "tags" -d 'What each name holds'
