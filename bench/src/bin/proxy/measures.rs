//! The measurements, a row or more each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::{Samples, in_turns};
use konnectivity::packet::Packet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::rig::Rig;
use crate::{Done, Result, Run};

/// Time in which a dial and its close are answered, or counted as unanswered.
const ANSWER: Duration = Duration::from_secs(5);

/// Time after a round until the memory is looked at.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// Clients that dial at a time.
const DIALLERS: usize = 16;

pub(crate) fn dials(run: &mut Run) -> Done {
    let rows = [
        "dials and closes a second",
        "dials and closes without an answer within 5 s",
        "processor time a dial, server (µs)",
        "processor time a dial, agent (µs)",
    ];
    let length = run.length;
    run.each("dials", rows, async |rig, proxied| {
        let (before, begin) = (rig.time()?, Instant::now());
        let [count, unanswered]: [Arc<AtomicU64>; 2] = Default::default();
        let mut tasks = JoinSet::new();
        for _ in 0..DIALLERS {
            let (rig, count, unanswered) = (rig.clone(), count.clone(), unanswered.clone());
            tasks.spawn(async move {
                while begin.elapsed() < length {
                    match tokio::time::timeout(ANSWER, dial(&rig, proxied)).await {
                        Ok(done) => drop((done?, count.fetch_add(1, Ordering::Relaxed))),
                        Err(_) => drop(unanswered.fetch_add(1, Ordering::Relaxed)),
                    }
                }
                Result::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let [count, unanswered] = [count, unanswered].map(|it| it.load(Ordering::Relaxed) as f64);
        let [server, agent] = spent(&rig, before, proxied, count / 1e6)?;
        Ok([count / length.as_secs_f64(), unanswered, server, agent])
    })
}

/// Processor time of server and agent since then, for each of `count`; none without a proxy.
fn spent(rig: &Rig, before: [f64; 2], proxied: bool, count: f64) -> Result<[f64; 2]> {
    let after = rig.time()?;
    let cost = |n: usize| if proxied { (after[n] - before[n]) / count } else { f64::NAN };
    Ok([cost(0), cost(1)])
}

/// Opens a connection to the target and closes it, to the answer.
async fn dial(rig: &Rig, proxied: bool) -> Result<()> {
    if proxied {
        let (mut tunnel, connection) = rig.open(b"").await?;
        tunnel.send(&Packet::CloseRequest { connection, half: false });
        tunnel.receive().await.ok_or("no answer to the close")?;
    } else {
        // An answer, so that no more are on their way than are accepted.
        let mut stream = rig.open_directly(b"ex").await?;
        stream.read_exact(&mut [0]).await?;
    }
    Ok(())
}

/// Bytes that connections received in a round.
struct Received {
    /// Bytes a second, all connections together.
    rate: f64,
    /// The most bytes of one connection over the least of one.
    spread: f64,
    /// Most resident memory of the server during the round, in bytes.
    memory: f64,
}

/// Receives on `count` connections at once for `length`, each reader resting for `pause` after each
/// message.
async fn received(
    rig: &Arc<Rig>,
    proxied: bool,
    count: usize,
    length: Duration,
    pause: Duration,
) -> Result<Received> {
    let bytes: Arc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for at in 0..count {
        let (rig, bytes) = (Arc::clone(rig), Arc::clone(&bytes));
        tasks.spawn(async move {
            let count = |some: usize| {
                bytes[at].fetch_add(some as u64, Ordering::Relaxed);
            };
            if !proxied {
                let (mut stream, mut buffer) = (rig.open_directly(b"s").await?, vec![0; 64 << 10]);
                loop {
                    match stream.read(&mut buffer).await? {
                        0 => return Err("the target ended the connection".into()),
                        some => count(some),
                    }
                }
            }
            let (mut tunnel, _) = rig.open(b"s").await?;
            while let Some(Packet::Data { bytes, .. }) = tunnel.receive().await {
                count(bytes.len());
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            Err("something else than data".into())
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let count = || bytes.iter().map(|it| it.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (before, begin) = (count(), Instant::now());
    let mut memory = 0_f64;
    while begin.elapsed() < length {
        tokio::time::sleep(Duration::from_millis(100)).await;
        memory = memory.max(rig.memory()?[0]);
    }
    let shares: Vec<_> =
        count().iter().zip(before).map(|(after, before)| (after - before) as f64).collect();
    let rate = shares.iter().sum::<f64>() / begin.elapsed().as_secs_f64();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let spread = shares.iter().copied().fold(0.0, f64::max) / least;
    // A task ends by itself with an error alone. One whose proxy gives it nothing any more would wait
    // for ever.
    while let Some(done) = tasks.try_join_next() {
        done??;
    }
    tasks.shutdown().await;
    Ok(Received { rate, spread, memory })
}

pub(crate) fn throughput(run: &mut Run, count: usize) -> Done {
    let rows = [
        format!("throughput of {count} (MB/s)"),
        format!("most over least bytes of {count}"),
        format!("server's memory during the throughput of {count} (MB)"),
        format!("server's memory three seconds after the throughput of {count} (MB)"),
        format!("processor time a gigabyte of {count}, server (s)"),
        format!("processor time a gigabyte of {count}, agent (s)"),
    ];
    let length = run.length;
    run.each(&format!("throughput of {count}"), rows, async |rig, proxied| {
        let (before, begin) = (rig.time()?, Instant::now());
        let Received { rate, spread, memory } =
            received(&rig, proxied, count, length, Duration::ZERO).await?;
        let gigabytes = rate * begin.elapsed().as_secs_f64() / 1e9;
        let [server, agent] = spent(&rig, before, proxied, gigabytes)?;
        if !proxied {
            return Ok([rate / 1e6, spread, f64::NAN, f64::NAN, server, agent]);
        }
        // The connections' ends reach the server, and it has time to give memory back.
        tokio::time::sleep(AFTERWARDS).await;
        Ok([rate / 1e6, spread, memory / 1e6, rig.memory()?[0] / 1e6, server, agent])
    })
}

/// Downloads whose readers do not keep up: their bytes wait in the proxy.
pub(crate) fn slow(run: &mut Run) -> Done {
    const PAUSE: Duration = Duration::from_millis(20);
    let rows = [
        "server's memory during 100 slow downloads (MB)",
        "server's memory three seconds after them (MB)",
        "most over least bytes of the slow ones",
    ];
    let length = run.length;
    run.each("100 slow readers", rows, async |rig, proxied| {
        if !proxied {
            return Ok([f64::NAN; 3]);
        }
        let Received { spread, memory, .. } = received(&rig, proxied, 100, length, PAUSE).await?;
        tokio::time::sleep(AFTERWARDS).await;
        Ok([memory / 1e6, rig.memory()?[0] / 1e6, spread])
    })
}

pub(crate) fn stalled(run: &mut Run) -> Done {
    // The original holds up all connections of an agent for one reader.
    let (rig, length) = (Arc::clone(&run.rigs[0]), run.length);
    let all = in_turns(run.rounds, &["100 busy connections", "and a stalled reader"], |way| {
        run.block_on(async {
            // It asks for data and never takes any.
            let _stalled = match way {
                0 => None,
                _ => Some(rig.open(b"s").await?),
            };
            let received = received(&rig, true, 100, length, Duration::ZERO).await?;
            Ok([received.rate / 1e6])
        })
    })?;
    run.row("100 busy connections alone (MB/s)", &all[0]);
    run.row("the same beside a stalled reader (MB/s)", &all[1]);
    Ok(())
}

pub(crate) fn latency(run: &mut Run) -> Done {
    const TURNS: usize = 5_000;
    let rows = ["p50", "p99"].map(|name| format!("64 bytes there and back, {name} (µs)"));
    run.each("latency", rows, async |rig, proxied| {
        let (mut tunnel, connection) = rig.open(b"e").await?;
        let mut stream = rig.open_directly(b"e").await?;
        let (message, mut answer) = ([0x5a; 64], [0; 64]);
        let mut times = Samples::new();
        for _ in 0..TURNS {
            let begin = Instant::now();
            if proxied {
                tunnel.send_data(connection, &message);
                tunnel.receive_data(message.len()).await?;
            } else {
                stream.write_all(&message).await?;
                stream.read_exact(&mut answer).await?;
            }
            times.add(begin.elapsed().as_secs_f64() * 1e6);
        }
        Ok([0.5, 0.99].map(|share| times.quantile(share)))
    })
}

pub(crate) fn memory(run: &mut Run, count: usize) -> Done {
    let idle = async |rig: &Rig| -> Result<[String; 2]> {
        // What the measurements before left behind is there in both.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, mut open) = (rig.memory()?, Vec::with_capacity(count));
        for _ in 0..count {
            let (mut tunnel, connection) = rig.open(b"e").await?;
            tunnel.send_data(connection, b"once");
            tunnel.receive_data(4).await?;
            open.push(tunnel);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = rig.memory()?;
        Ok([0, 1].map(|n| format!("{:.0}", (after[n] - before[n]) / count as f64)))
    };
    eprintln!("memory of {count} idle connections");
    let all = run.rigs.iter().map(|rig| run.block_on(idle(rig)));
    let all = all.collect::<Done<Vec<_>>>()?;
    for (n, name) in ["server", "agent"].into_iter().enumerate() {
        let each: Vec<&String> = all.iter().map(|figures| &figures[n]).collect();
        run.row(format!("memory for each of {count} idle connections, {name} (bytes)"), &each);
    }
    Ok(())
}
