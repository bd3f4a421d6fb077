//! Each row by its evidence, and what only looks like one.

use super::*;
use crate::{
    judge::tests::build::{ancestor, id, process},
    model::Evidence,
};

/// Short name, command line, environment, the parent's name, and the program.
type Case =
    (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)], &'static str, &'static str);

fn with(comm: &str, argv: &[&str], environment: &[(&str, &str)], parent: &str) -> Process {
    let mut made = process(id(50, 5), vec![ancestor(id(40, 4), parent)], None);
    made.comm = comm.into();
    made.argv = argv.iter().map(|a| (*a).to_owned()).collect();
    made.environment = environment.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    made
}

#[test]
fn each_program_by_its_evidence() {
    const RANK: [(&str, &str); 2] = [("TORCHELASTIC_RUN_ID", "none"), ("LOCAL_RANK", "0")];
    let cases: &[Case] = &[
        ("pt_data_worker", &["python", "train.py"], &RANK, "python", "DataLoader worker"),
        ("python3", &["/usr/bin/python3", "-u", "train.py"], &RANK, "pt_elastic", "torchrun rank"),
        ("pt_elastic", &["python3", "/venv/bin/torchrun", "t.py"], &[], "bash", "torchrun agent"),
        ("python3", &["python3", "-m", "torch.distributed.run", "t.py"], &[], "bash", "torchrun agent"),
        ("VLLM::EngineCor", &["VLLM::EngineCore"], &[], "vllm", "vLLM engine"),
        ("vllm", &["/venv/bin/python", "/venv/bin/vllm", "serve", "m"], &[], "bash", "vLLM engine"),
        ("sglang::schedul", &["sglang::scheduler_TP0"], &[], "python", "SGLang engine"),
        ("ray::f", &["ray::f", "", ""], &[], "raylet", "Ray worker"),
        (
            "python3",
            &[
                "python3",
                "-c",
                "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)",
                "--multiprocessing-fork",
            ],
            &[],
            "python3",
            "multiprocessing worker",
        ),
        (
            "python3",
            &["python3", "-c", "from multiprocessing.resource_tracker import main;main(5)"],
            &[],
            "python3",
            "multiprocessing resource tracker",
        ),
        ("python", &["python", "-m", "ipykernel_launcher", "-f", "/x/k.json"], &[], "jupyter-lab", "Jupyter kernel"),
        ("cuda-gdb", &["/usr/local/cuda/bin/cuda-gdb", "./a"], &[], "bash", "debugger"),
        ("tensorflow_mode", &["tensorflow_model_server", "--port=1"], &[], "systemd", "TensorFlow Serving"),
        ("tritonserver", &["/opt/tritonserver/bin/tritonserver"], &[], "systemd", "Triton server"),
        ("nvidia-cuda-mps", &["nvidia-cuda-mps-server"], &[], "nvidia-cuda-mps", "MPS server"),
        ("nvidia-cuda-mps", &["nvidia-cuda-mps-control", "-d"], &[], "systemd", "MPS control daemon"),
        ("Xorg", &["/usr/lib/xorg/Xorg", "-core", ":0"], &[], "gdm-x-session", "display server"),
        ("nv-hostengine", &["/usr/bin/nv-hostengine", "-n"], &[], "systemd", "DCGM"),
        ("nvidia-persiste", &["/usr/bin/nvidia-persistenced", "--user", "x"], &[], "systemd", "persistence daemon"),
    ];
    for (comm, argv, environment, parent, name) in cases {
        let known = recognise(&with(comm, argv, environment, parent));
        assert_eq!(known.as_ref().map(|k| k.program.name), Some(*name), "{argv:?}");
        assert!(!known.unwrap().signs.is_empty());
    }
}

#[test]
fn the_name_of_a_run_is_not_told() {
    let environment = [("TORCHELASTIC_RUN_ID", "josephines-run"), ("LOCAL_RANK", "3")];
    let known = recognise(&with("python3", &["python3"], &environment, "bash")).unwrap();
    assert_eq!(
        Evidence::Signs { signs: known.signs }.to_string(),
        "its environment has TORCHELASTIC_RUN_ID, its environment says LOCAL_RANK=3"
    );
}

#[test]
fn others_are_none_of_them() {
    // A rank by hand: nobody restarts it, and its parent may have left it on purpose.
    let by_hand = [("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "2")];
    for (argv, environment) in [
        (&["python3", "train.py"][..], &by_hand[..]),
        (&["vim", "vllm.py"], &[]),
        (&["python", "-m", "raytracer"], &[]),
        (&[], &[]),
    ] {
        let known = recognise(&with("python3", argv, environment, "bash"));
        assert!(known.is_none(), "{argv:?}: {known:?}");
    }
    // A name alone that begins like Ray's is not enough.
    assert!(recognise(&with("ray::f", &["python"], &[], "bash")).is_none());
}

#[test]
fn only_plain_paths_become_a_part_of_a_command() {
    let kernel = |path: &str| with("python", &["python", "-m", "ipykernel_launcher", "-f", path], &[], "x");
    let path = "/home/u/.local/share/jupyter/runtime/kernel-1b2c.json";
    assert_eq!(connection_file(&kernel(path)), Some(path));
    for path in ["/x/$(reboot).json", "k.json", "/x/a b.json", "/x/'.json", "/x/k"] {
        assert_eq!(connection_file(&kernel(path)), None, "{path}");
    }
}
