//! What to do about each of the three parts: references by name, the cache, the context. For a process that has ended
//! it is about the next run; nothing of it is left on the GPU.

use crate::model::{Advice, Bytes, TorchDevice, TorchLive, TorchProcess};

/// Less than this is not worth a word.
const NOTICEABLE: Bytes = Bytes::mib(1);
/// A cache that is worth a word.
const CACHE: Bytes = Bytes::mib(64);
/// Names of one sentence.
const NAMED: usize = 3;

/// The steps for one process.
pub(super) fn of(process: &TorchProcess) -> Vec<Advice> {
    let mut steps = Vec::new();
    for device in &process.devices {
        if let Some(live) = &device.live {
            steps.extend(references(live));
            steps.extend(graphs(live));
        }
        steps.extend(cache(process, device));
        steps.extend(out_of_memory(device));
    }
    if let Some(thread) = process.threads.first().filter(|_| process.alive) {
        steps.push(step(
            None,
            format!(
                "the main thread has ended; {} keeps the process alive: end it, or start it with daemon=True",
                name_of(thread)
            ),
            "nobody",
        ));
    }
    steps.extend(context(process));
    steps
}

fn name_of(thread: &crate::model::TorchThread) -> String {
    let function = thread.function.as_ref().map(|f| format!(" ({f})")).unwrap_or_default();
    format!("the thread {}{function}, which is no daemon,", thread.name)
}

fn step(command: Option<String>, why: impl Into<String>, disturbs: impl Into<String>) -> Advice {
    Advice { command, why: why.into(), disturbs: disturbs.into() }
}

fn references(live: &TorchLive) -> Option<Advice> {
    let mut named: Vec<String> = live
        .owners
        .iter()
        .filter(|o| o.bytes >= NOTICEABLE && o.kind != "cpp" && o.kind != "unknown")
        .take(NAMED)
        .map(|o| {
            let scope = o.scope.as_ref().map(|s| format!(", {s}")).unwrap_or_default();
            format!("`{}` ({}{scope})", o.name, o.bytes)
        })
        .collect();
    if named.is_empty() {
        return None;
    }
    let more = live.owners.len().saturating_sub(named.len());
    if more > 0 {
        named.push(format!("{more} more"));
    }
    let traceback = live.owners.iter().any(|o| o.kind == "traceback");
    let output = live.owners.iter().any(|o| o.kind == "ipython_out");
    let mut why = format!(
        "drop the references when they are no longer needed (`del`, `= None`, or let the function return): {}",
        named.join(", ")
    );
    if traceback {
        why.push_str("; a traceback of the last error keeps the variables of its functions: `sys.last_traceback = None` and sys.last_value, sys.last_exc");
    }
    if output {
        why.push_str("; a notebook keeps what cells returned: `%reset -f out`, or end the cell with `;`");
    }
    Some(step(None, why, "nobody"))
}

fn graphs(live: &TorchLive) -> Option<Advice> {
    let first = live.graphs.first()?;
    let why = format!(
        "{} tensor{} such as `{first}` keep their autograd graph, and with it the activations, which C++ holds: append \
         `loss.item()` or `loss.detach()` instead of the loss itself",
        live.graph_storages,
        if live.graph_storages == 1 { "" } else { "s" }
    );
    Some(step(None, why, "nobody"))
}

fn cache(process: &TorchProcess, device: &TorchDevice) -> Option<Advice> {
    let cached = device.end.cached_bytes.filter(|cached| *cached >= CACHE)?;
    let given_back = device.releasable_bytes;
    let amount = match given_back {
        Some(bytes) => format!("{bytes} of the cache's {cached}"),
        None => format!("up to {cached} of cache"),
    };
    let mut why = format!(
        "`gc.collect()` and then `torch.cuda.empty_cache()`, called in that process, would have given back {amount}; no other \
         process can do it, and it makes room for other programs, not for this one"
    );
    let stuck = given_back.map(|bytes| cached.saturating_sub(bytes)).filter(|stuck| *stuck >= CACHE);
    let command = stuck.map(|stuck| {
        why.push_str(&format!(
            "; {stuck} are free pieces of segments that are in use: expandable segments lessen that (since PyTorch 2.9 \
             the variable is also called PYTORCH_ALLOC_CONF)"
        ));
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned()
    });
    let disturbs = if process.alive { "nobody; its next allocations are slower" } else { "nobody" };
    Some(step(command, why, disturbs))
}

fn out_of_memory(device: &TorchDevice) -> Option<Advice> {
    let ooms = device.ooms.filter(|n| *n > 0)?;
    let retries = device.retries.unwrap_or(0);
    let why = format!(
        "an allocation failed {ooms} time{} ({retries} retr{} with an emptied cache): smaller batches, or less live \
         memory as above",
        if ooms == 1 { "" } else { "s" },
        if retries == 1 { "y" } else { "ies" }
    );
    Some(step(None, why, "nobody"))
}

/// Only the end of the process gives the context back; with it everything else goes too.
fn context(process: &TorchProcess) -> Option<Advice> {
    if !process.alive {
        return None;
    }
    let context: Bytes = process.devices.iter().filter_map(|d| d.end.context_bytes).sum();
    let amount = if context > Bytes::ZERO { format!(" {context} of") } else { String::new() };
    let why = format!(
        "end the process: only that gives back its{amount} context and libraries, and its tensors and cache go with it"
    );
    Some(step(Some(format!("kill {}", process.pid)), why, format!("PID {}", process.pid)))
}
