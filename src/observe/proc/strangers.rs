//! Whatever a process writes into what `/proc` shows of it, reading it ends, in bounds.

use super::{blocked, cgroup, memory, shared, stat};
use crate::text::mangled::mangled;
use proptest::prelude::*;

const STATS: [&str; 2] = [
    "4711 (python3) S 1 4711 4711 34816 4711 4194304 9 0 0 0 17 5 0 0 20 0 23 0 1234567 1000 50 184467440 1 1 0 0 0",
    "9 (a (b) c) ) Z 1 9 9 0 -1 4228108 0 0 0 0 0 0 0 0 20 0 1 0 18446744073709551615 0 0",
];
const STATUSES: [&str; 1] = ["Name:\tpython3\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t4711\nTracerPid:\t0\n\
    Uid:\t1000\t1000\t1000\t1000\nNSpid:\t4711\t7\nThreads:\t23\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n\
    SigBlk:\t0000000000000000\nSigIgn:\t0000000001001000\nSigCgt:\t0000000000000002\nCapEff:\t000001ffffffffff\n\
    CoreDumping:\t0\nvoluntary_ctxt_switches:\t18446744073709551615\nnonvoluntary_ctxt_switches:\t7\n"];
const CGROUPS: [&str; 2] =
    ["0::/user.slice/user-1000.slice/session-3.scope\n", "12:pids:/docker/ab\n1:name=systemd:/\n0::/\n"];
const ENVIRONMENTS: [&str; 1] =
    ["PATH=/bin\0GPURESID_RUN_ID=0d5c1c2a-1-2-3:0d5c1c2a-4-5-6\0SLURM_JOB_ID=7\0CI_JOB_ID=\0LOCAL_RANK=1\0=x\0"];
const MAPS: [&str; 1] = ["7f00-7f01 rw-s 00000000 00:1a 12 /dev/shm/cuda.shm.0.5.1 (deleted)\n\
    7f01-7f02 r-xp 00000000 fd:01 4711 /usr/lib/libnvidia-ml.so.1\n7f02-7f03 rw-p 00000000 00:00 0 [heap]\n"];
const MOUNTS: [&str; 1] = ["36 35 98:0 /mnt1 /data rw,noatime master:1 - nfs4 server:/export rw\n\
    21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn stat(text in mangled(&STATS)) {
        if let Some(stat) = stat::Stat::parse(&text) {
            prop_assert!(stat.comm.len() <= text.len() * 3);
            let _ = (stat.dead(), stat.exiting(), stat.of_kernel(), stat.plain_zombie());
        }
    }

    #[test]
    fn status(text in mangled(&STATUSES)) {
        let status = stat::Status::parse(&text);
        prop_assert!(status.nspid.len() <= text.len() && status.tracer != Some(0));
        let _ = (status.kill_pending(), status.blocks_term());
    }

    #[test]
    fn control_group(text in mangled(&CGROUPS)) {
        prop_assert!(cgroup::telling_path(&text).is_none_or(|path| path.starts_with('/') && !path.contains('\n')));
    }

    #[test]
    fn environment_and_arguments(text in mangled(&ENVIRONMENTS)) {
        prop_assert!(memory::marker(&text).is_none_or(|marker| !marker.is_empty() && marker.len() <= text.len()));
        prop_assert!(memory::telling(&text).values().all(|value| value.len() <= text.len()));
        prop_assert!(memory::arguments(&text).iter().all(|word| !word.contains('\0')));
    }

    #[test]
    fn mappings(text in mangled(&MAPS)) {
        prop_assert!(memory::shared(&text).iter().all(|path| path.starts_with("/dev/shm/")));
        prop_assert!(shared::mapped(&text).all(|(_, _, inode)| inode > 0));
    }

    #[test]
    fn what_a_thread_waits_for(text in mangled(&MOUNTS)) {
        let text = String::from_utf8_lossy(&text);
        prop_assert!(blocked::with_file_system("/data/x".into(), &text).starts_with("/data/x"));
        prop_assert!(blocked::module(&text).is_none_or(|module| !module.contains('\n')));
        let _ = text.lines().map(blocked::descriptor).count();
    }
}
