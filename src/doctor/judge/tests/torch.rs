//! The installed PyTorch.

use super::*;

fn with(version: &'static str, cuda: Option<&'static str>, driver: &'static str) -> impl Fn(&mut Facts) {
    move |f| {
        f.python = python(torch(version, cuda));
        seen(f).inventory.driver.driver_version = Some(driver.into());
        f.kernel.module = Some(driver.into());
    }
}

#[test]
fn pytorchs_cuda_needs_a_driver() {
    for (version, cuda, driver) in [
        ("2.11.0+cu130", "13.0", "580.65"),
        ("2.7.1+cu128", "12.8", "525.60.13"),
        ("2.0.1+cu118", "11.8", "450.80.02"),
        ("1.8.1", "10.2", "440.33"),
    ] {
        says("torch.cuda", Level::Ok, "serves PyTorch's CUDA", with(version, Some(cuda), driver));
    }
    for (version, cuda, driver, fix) in [
        ("2.11.0+cu130", "13.0", "575.51", "build for an older CUDA | /venv/bin/python -m pip install"),
        (
            "2.7.1+cu128",
            "12.8",
            "515.105",
            "--force-reinstall torch==2.7.1 --index-url https://download.pytorch.org/whl/cu118",
        ),
        ("2.11.0+cu128", "12.8", "515.105", "no build of 2.11.0 for this driver is known | /venv/bin/python"),
        (
            "2.11.0+cu128",
            "12.8",
            "515.105",
            "--force-reinstall torch --index-url https://download.pytorch.org/whl/cu118",
        ),
        ("2.0.1+cu118", "11.8", "450.51", "nvidia-driver-450"),
        ("1.8.1", "10.2", "418.87", "nvidia-driver-440"),
    ] {
        says("torch.cuda", Level::Fail, fix, with(version, Some(cuda), driver));
    }
    says("torch.cuda", Level::CouldNotLook, "does not tell", |f| {
        f.python = python(Torch { version: None, tells_cuda: false, ..torch("2.11.0+cu130", None) });
    });
    says("torch.cuda", Level::CouldNotLook, "none to compare with", |f| {
        f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
        f.kernel.module = None;
    });
}

/// A PyTorch for this CUDA, and a driver that reports that one.
fn reports(cuda: &'static str, driver: &'static str, reported: Option<&'static str>) -> impl Fn(&mut Facts) {
    move |f| {
        with("2.11.0", Some(cuda), driver)(f);
        seen(f).inventory.driver.cuda_version = reported.map(Into::into);
    }
}

#[test]
fn what_the_driver_reports_itself_counts_too() {
    const CHECK: &str = "torch.cuda";
    let unknown = "knows no driver for PyTorch's CUDA 14.0; the driver here reports CUDA 13.0";
    says(CHECK, Level::CouldNotLook, unknown, reports("14.0", "580.1", Some("13.0")));
    says(CHECK, Level::CouldNotLook, "no driver for PyTorch's CUDA 14.0", reports("14.0", "580.1", None));
    says(CHECK, Level::Ok, "reports CUDA 14.1, and serves PyTorch's CUDA 14.0", reports("14.0", "640.1", Some("14.1")));
    let minor = "by minor version compatibility within CUDA 13; kernels that come as PTX of CUDA 13.2 need a newer";
    says(CHECK, Level::Ok, minor, reports("13.2", "580.1", Some("13.0")));
    says(CHECK, Level::Ok, "compatibility within CUDA 11;", reports("11.8", "450.80.02", Some("11.0")));
    says(CHECK, Level::Ok, "(it needs 580 or newer)", reports("13.2", "595.1", Some("13.2")));
    says(CHECK, Level::Ok, "(it needs 525 or newer)", reports("12.8", "580.1", Some("13.0")));
    says(CHECK, Level::Ok, "(it needs 580 or newer)", reports("13.2", "580.1", None));
    says(CHECK, Level::CouldNotLook, "but the driver reports CUDA 12.8", reports("13.0", "580.1", Some("12.8")));
    says(CHECK, Level::Ok, "serves PyTorch's CUDA 8.0 as well", reports("8.0", "580.1", Some("13.0")));
}

#[test]
fn another_build_is_of_the_same_version_where_there_is_one() {
    const CHECK: &str = "torch.cuda";
    let whl = "https://download.pytorch.org/whl/";
    for (version, driver, reported, fix) in [
        ("2.11.0+cpu", "580.1", "13.0", format!("torch==2.11.0 --index-url {whl}cu130")),
        ("2.11.0+cpu", "535.54", "12.2", format!("torch==2.11.0 --index-url {whl}cu126")),
        ("2.8.0", "580.1", "13.0", format!("torch==2.8.0 --index-url {whl}cu129")),
        ("1.13.1+cpu", "580.1", "13.0", format!("torch --index-url {whl}cu130")),
        ("2.11.0a0+git1", "580.1", "13.0", format!("torch --index-url {whl}cu130")),
    ] {
        says(CHECK, Level::Warn, &format!("/venv/bin/python -m pip install --force-reinstall {fix}"), |f| {
            with(version, None, driver)(f);
            seen(f).inventory.driver.cuda_version = Some(reported.into());
        });
    }
    says(
        CHECK,
        Level::Warn,
        &format!(
            "ROCm 6.2) and does not see an NVIDIA GPU | /venv/bin/python -m pip install --force-reinstall torch==2.5.0 --index-url {whl}cu124"
        ),
        |f| {
            f.python = python(Torch { hip: Some("6.2".into()), ..torch("2.5.0+rocm6.2", None) });
        },
    );
    // Without a driver nobody knows which index.
    says(CHECK, Level::Warn, "pip install --force-reinstall torch==2.11.0", |f| {
        f.python = python(torch("2.11.0+cpu", None));
        f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
        f.kernel.module = None;
    });
    let spaces = |f: &mut Facts| {
        with("2.11.0+cpu", None, "580.1")(f);
        if let Python::Found { interpreter, .. } = &mut f.python {
            *interpreter = "/my env/bin/python".into();
        }
    };
    says(CHECK, Level::Warn, "'/my env/bin/python' -m pip", spaces);
}

#[test]
fn an_install_that_is_not_whole() {
    says("torch.install", Level::Fail, "files are 2.11.0+cu130, pip says 2.9.1", |f| {
        f.python = python(Torch { metadata_version: Some("2.9.1".into()), ..torch("2.11.0+cu130", Some("13.0")) });
    });
    says("torch.install", Level::Warn, "/other and is hidden", |f| {
        let other = Torch { site: "/other".into(), ..torch("2.0.0", None) };
        if let Python::Found { torch, .. } = &mut f.python {
            torch.push(other);
        }
    });
    says("torch", Level::CouldNotLook, "no PyTorch is installed", |f| {
        if let Python::Found { torch, .. } = &mut f.python {
            torch.clear();
        }
    });
    says("torch", Level::CouldNotLook, "no python", |f| f.python = Python::None("no python".into()));
    says("torch", Level::CouldNotLook, "sys.executable", |f| {
        f.python = Python::Unclear("/shims/python".into(), "a script".into());
    });
    says("torch", Level::CouldNotLook, "version.py cannot be read", |f| {
        f.python = python(Torch { version: None, metadata_version: None, ..torch("", None) });
    });
}

#[test]
fn a_path_with_blanks_stands_in_quotes_in_what_is_to_be_pasted() {
    says("torch.install", Level::Fail, "'/my venv;id/python' -m pip", |f| {
        f.python = Python::Found {
            interpreter: "/my venv;id/python".into(),
            searched: Vec::new(),
            torch: vec![Torch { metadata_version: Some("2.9.1".into()), ..torch("2.11.0+cu130", Some("13.0")) }],
        };
    });
    says("torch", Level::CouldNotLook, "$('/my shims/python' -c", |f| {
        f.python = Python::Unclear("/my shims/python".into(), "a script".into());
    });
}

#[test]
fn what_a_version_can_tell_of_memory() {
    let said = |change: &dyn Fn(&mut Facts)| after("torch.memory", change);
    assert_eq!(said(&|_| {}), [(Level::Ok, "all of PyTorch's memory calls are there | ".to_owned())]);
    says("torch.memory", Level::Ok, "expandable_segments (since 2.1.0)", with("1.8.1", Some("10.2"), "580.1"));
    let old = said(&with("1.0.0", Some("9.0"), "580.1"));
    assert_eq!(old.len(), 1, "{old:?}");
    assert!(old[0].1.starts_with("it does not have torch.cuda.memory_reserved (since 1.4.0), "), "{old:?}");
}

#[test]
fn known_faults() {
    let fault = |id: &str, version: &'static str, variable: &'static str, value: &'static str| {
        after(&format!("torch.fault.{id}"), |f| {
            with(version, Some("12.1"), "580.1")(f);
            f.environment.insert(variable.into(), value.into());
        })
        .len()
    };
    const CUDA: &str = "PYTORCH_CUDA_ALLOC_CONF";
    for (version, n) in [("2.1.2", 0), ("2.2.0", 1), ("2.3.0+cu121", 1), ("2.3.1", 0)] {
        assert_eq!(fault("compile-leak", version, "X", ""), n, "{version}");
    }
    for (version, value, n) in [
        ("2.4.0", "expandable_segments:True,max_split_size_mb:64", 1),
        ("2.4.0", "expandable_segments:True", 0),
        ("2.4.0", "expandable_segments:False,max_split_size_mb:64", 0),
        ("2.5.0", "expandable_segments:True,max_split_size_mb:64", 0),
    ] {
        assert_eq!(fault("segments-and-limits", version, CUDA, value), n, "{version} {value}");
    }
    for (version, variable, n) in
        [("2.9.1", "PYTORCH_ALLOC_CONF", 1), ("2.9.1", CUDA, 0), ("2.11.0", "PYTORCH_ALLOC_CONF", 0)]
    {
        assert_eq!(
            fault("alloc-conf-ignored", version, variable, "expandable_segments:True"),
            n,
            "{version} {variable}"
        );
    }
    assert_eq!(fault("segments-not-shared", "2.5.0", CUDA, "expandable_segments:True"), 1);
    assert_eq!(fault("segments-shared-in-containers", "2.11.0", CUDA, "expandable_segments:True"), 1);
    assert_eq!(fault("early-leaks", "1.3.0", "X", ""), 0, "nobody has shown it");
    says("torch.fault", Level::Ok, "no memory bug of 1.3.0", with("1.3.0", Some("10.1"), "580.1"));
}
