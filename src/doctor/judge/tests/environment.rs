//! Variables of the shell.

use super::*;

#[test]
fn visible_devices() {
    const CHECK: &str = "env.CUDA_VISIBLE_DEVICES";
    says(CHECK, Level::Ok, "not set", |_| {});
    for (value, n) in [("0", 1), ("0,1", 2), (" 1 , 0", 2), ("GPU-0000", 1), ("GPU-1,GPU-0", 2), ("1gpu", 1)] {
        says(CHECK, Level::Ok, &format!("selects {n} "), set("CUDA_VISIBLE_DEVICES", value));
    }
    for value in ["", "-1", "7", "NoDevFiles", "GPU-9", "GPU-", "2,0", "0,0", "1,0,1", "GPU-0,GPU-0"] {
        says(CHECK, Level::Fail, "selects nothing", set("CUDA_VISIBLE_DEVICES", value));
    }
    for (value, at, why) in [
        ("0,GPU-1111", "GPU-1111", "mixed"),
        ("GPU-1111,0", "`0`", "mixed"),
        ("0,7,1", "`7`", "called so"),
        ("0,-1,1", "`-1`", "called so"),
        ("0,", "``", "called so"),
    ] {
        says(CHECK, Level::Warn, at, set("CUDA_VISIBLE_DEVICES", value));
        says(CHECK, Level::Warn, why, set("CUDA_VISIBLE_DEVICES", value));
        says(CHECK, Level::Warn, "only the first 1", set("CUDA_VISIBLE_DEVICES", value));
    }
    let blind = |value: &'static str| {
        move |f: &mut Facts| {
            f.driver = Err(Failure { kind: FailureKind::NoDriver, message: "no".into(), hint: None });
            f.environment.insert("CUDA_VISIBLE_DEVICES".into(), value.into());
        }
    };
    says(CHECK, Level::CouldNotLook, "selects anything", blind("0,1"));
    says(CHECK, Level::Fail, "selects nothing", blind("-1"));
    says(CHECK, Level::Warn, "mixed", blind("0,GPU-1"));
}

#[test]
fn the_order_of_devices() {
    const CHECK: &str = "env.CUDA_DEVICE_ORDER";
    assert_eq!(after(CHECK, set("CUDA_VISIBLE_DEVICES", "0")), []);
    let mixed = |order: Option<&'static str>| {
        move |f: &mut Facts| {
            seen(f).inventory.devices[1].name = Some("T4".into());
            f.environment.insert("CUDA_VISIBLE_DEVICES".into(), "0".into());
            if let Some(order) = order {
                f.environment.insert("CUDA_DEVICE_ORDER".into(), order.into());
            }
        }
    };
    says(CHECK, Level::Warn, "different models", mixed(None));
    says(CHECK, Level::Warn, "different models", mixed(Some("FASTEST_FIRST")));
    assert_eq!(after(CHECK, mixed(Some("PCI_BUS_ID"))).iter().filter(|(l, _)| *l != Level::Ok).count(), 0);
    says(CHECK, Level::Warn, "not an order that CUDA knows", set("CUDA_DEVICE_ORDER", "pci"));
}

#[test]
fn switches_left_on() {
    for name in ["CUDA_LAUNCH_BLOCKING", "NVML_MPS_DEVICE_ENUMERATION", "PYTORCH_NO_CUDA_MEMORY_CACHING"] {
        let check = format!("env.{name}");
        says(&check, Level::Warn, &format!("unset {name}"), set(name, "1"));
        assert_eq!(after(&check, set(name, "0")), []);
        assert_eq!(after(&check, |_| {}), []);
    }
}

#[test]
fn settings_of_the_allocator() {
    says(
        "env.PYTORCH_ALLOC_CONF",
        Level::Ok,
        "1 setting understood",
        set("PYTORCH_ALLOC_CONF", "expandable_segments:True"),
    );
    says(
        "env.PYTORCH_CUDA_ALLOC_CONF",
        Level::Fail,
        "no option `max_split_size`; `max_split_size_mb` is one",
        set("PYTORCH_CUDA_ALLOC_CONF", "max_split_size:64"),
    );
    says("env.PYTORCH_ALLOC_CONF", Level::Warn, "both set and differ", |f| {
        f.environment.insert("PYTORCH_ALLOC_CONF".into(), "max_split_size_mb:64".into());
        f.environment.insert("PYTORCH_CUDA_ALLOC_CONF".into(), "max_split_size_mb:128".into());
    });
    says("env.PYTORCH_ALLOC_CONF", Level::Warn, "not read by PyTorch 2.5.1", |f| {
        f.python = python(torch("2.5.1", Some("12.4")));
        f.environment.insert("PYTORCH_ALLOC_CONF".into(), "max_split_size_mb:64".into());
    });
}
