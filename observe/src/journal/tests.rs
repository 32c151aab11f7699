//! Journals that are written, continued, damaged, and read back.

use std::fs::File;
use std::io::Read as _;

use flate2::read::GzDecoder;
use testkit::TempDir;

use super::*;
use crate::time::{moment, utc};
use crate::verdicts::denied;

fn rows(folder: &Path, since: Option<SystemTime>) -> (Vec<Row>, Missing) {
    let mut rows = Vec::new();
    let missing = read(folder, since, |row| rows.push(row)).unwrap();
    (rows, missing)
}

fn write(hour: &Hour, path: &Path) {
    let mut bytes = Vec::new();
    hour.write("node-a", &mut bytes).unwrap();
    fs::write(path, bytes).unwrap();
}

fn at(time: &str, from: &str, port: u16) -> Event {
    let from = End { pod: Some(from.into()), port: Some(port), ..denied().from };
    Event { time: moment(time).unwrap(), from, ..denied() }
}

#[test]
fn connections_of_the_same_ends_are_one_row_of_an_hour() {
    let folder = TempDir::new("journal");
    let path = folder.path().join("2026-11-25T09.json.gz");
    let mut hour = Hour::new(MOST);
    hour.count(&at("2026-11-25T09:00:01.000Z", "default/web", 4000));
    hour.count(&at("2026-11-25T09:10:00.000Z", "default/web", 4001));
    hour.count(&Event { reason: "malformed-ip".into(), ..denied() });
    write(&hour, &path);
    // The next process continues.
    let (mut hour, damage) = Hour::resume(&path, MOST).unwrap();
    assert_eq!(damage, None);
    hour.count(&at("2026-11-25T09:20:00.000Z", "default/web", 4002));
    hour.count(&at("2026-11-25T09:30:00.000Z", "default/job", 4003));
    write(&hour, &path);
    let (mut rows, missing) = rows(folder.path(), None);
    rows.sort_by_key(|row| row.count);
    let found: Vec<_> = rows
        .iter()
        .map(|row| (row.event.from.to_string(), row.count, utc(row.event.time), utc(row.last)))
        .collect();
    let expected = [
        (
            "default/job".to_owned(),
            1,
            "2026-11-25T09:30:00.000Z".to_owned(),
            "2026-11-25T09:30:00.000Z".to_owned(),
        ),
        (
            "default/web".to_owned(),
            3,
            "2026-11-25T09:00:01.000Z".to_owned(),
            "2026-11-25T09:20:00.000Z".to_owned(),
        ),
    ];
    assert_eq!((found, missing), (expected.to_vec(), Missing::default()));
    let since = |text: &str| super::tests::rows(folder.path(), moment(text)).0.len();
    assert_eq!(since("2026-11-25T09:25:00Z"), 1);
    assert_eq!(since("2026-11-25T10:00:00Z"), 0, "a file before is not opened");
}

#[test]
fn a_fold_takes_every_row_once_whichever_thread_reads_it() {
    let folder = TempDir::new("journal-fold");
    for n in 0..9 {
        let mut hour = Hour::new(MOST);
        for pod in 0..=n {
            let pod = format!("default/p{pod}");
            hour.count(&at(&format!("2026-11-25T0{n}:00:01.000Z"), &pod, 1));
        }
        write(&hour, &folder.path().join(format!("2026-11-25T0{n}.json.gz")));
    }
    let cut = folder.path().join("2026-11-25T03.json.gz");
    let whole = fs::read(&cut).unwrap();
    fs::write(&cut, &whole[..whole.len() - 9]).unwrap();
    let pods = |since| {
        let take = |pods: &mut Vec<_>, row: Connections| pods.push((row.from.pod, row.last));
        let (found, missing) = fold(folder.path(), since, Vec::new, take).unwrap();
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        found.sort();
        (found, missing)
    };
    for since in [None, moment("2026-11-25T02:00:00Z")] {
        let (read, missing) = rows(folder.path(), since);
        let mut read: Vec<_> = read.into_iter().map(|row| (row.event.from.pod, row.last)).collect();
        read.sort();
        assert_eq!(pods(since), (read, missing));
    }
    fs::write(folder.path().join("2026-11-25T05.json"), "x").unwrap();
    let faults = fold(folder.path(), None, || (), |(), _| ()).unwrap_err();
    assert!(faults.len() == 1 && faults[0].contains("2026-11-25T05.json: line 1"), "{faults:?}");
}

#[test]
fn what_is_no_file_of_a_journal_is_named() {
    let folder = TempDir::new("journal-odd");
    fs::write(
        folder.path().join("2026-11-25T09.json"),
        "{\"podgate_journal\":9,\"node\":\"a\",\"left_out\":0}\n",
    )
    .unwrap();
    fs::write(folder.path().join("2026-11-25T10.json"), "{half").unwrap();
    fs::write(folder.path().join("notes.txt"), "x").unwrap();
    let faults = read(folder.path(), None, drop).unwrap_err();
    assert_eq!(faults.len(), 2);
    assert!(faults[0].ends_with("2026-11-25T09.json: has version 9; this program reads 1"));
    assert!(faults[1].contains("2026-11-25T10.json: line 1: is not the head of a journal"));
}

fn hour_bytes(path: &Path) -> usize {
    let mut text = String::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap()
}

#[test]
fn an_hour_is_bounded_and_a_pod_that_fills_it_leaves_room_for_others() {
    let folder = TempDir::new("journal-shares");
    let path = folder.path().join("2026-11-25T09.json.gz");
    let mut hour = Hour::new(400_000);
    let mut scan = |pod: &str, ports: u16| {
        for port in 0..ports {
            let event = at("2026-11-25T09:00:01.000Z", pod, 4000);
            let to = End { port: Some(port), ..event.to };
            hour.count(&Event { to, ..event });
        }
        write(&hour, &path);
        let of_pod = |row: &&Row| row.event.from.pod.as_deref() == Some(pod);
        (hour.rows.values().filter(of_pod).count(), hour.left_out)
    };
    let (rows, left_out) = scan("default/scan", 5_000);
    let bytes = hour_bytes(&path);
    assert!((95_000..101_000).contains(&bytes), "half of an hour's half: {bytes}");
    assert_eq!(rows as u64 + left_out, 5_000);
    assert_eq!(scan("default/web", 100), (100, left_out));
    // The next process continues with the same shares.
    let (mut hour, _) = Hour::resume(&path, 400_000).unwrap();
    assert_eq!((hour.rows.len(), hour.left_out), (rows + 100, left_out));
    let event = at("2026-11-25T09:00:01.000Z", "default/scan", 4000);
    hour.count(&Event { to: End { port: Some(9_999), ..event.to }, ..event });
    assert_eq!(hour.left_out, left_out + 1);
}

#[test]
fn what_stands_in_the_folder_beside_the_files_is_passed_over() {
    let folder = TempDir::new("journal-foreign");
    let path = |name: &str| folder.path().join(name);
    let hour = "2026-11-25T09.json.gz";
    write(&Hour::new(MOST), &path(hour));
    fs::create_dir(path("2026-11-25T08.json")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", path("2026-11-25T07.json")).unwrap();
    std::os::unix::fs::symlink("/nowhere", path("2026-11-25T06.json.gz")).unwrap();
    fs::write(path("notes-of-mine.json"), "{}").unwrap();
    let fifo = path("2026-11-25T05.json");
    testkit::make_fifo(&fifo);
    assert_eq!(files(folder.path()).unwrap(), [path(hour)]);
    assert_eq!(rows(folder.path(), None), (Vec::new(), Missing::default()));
    let error = Hour::resume(&fifo, MOST).unwrap_err();
    assert_eq!(error.to_string(), "is not a regular file");
}

#[test]
fn a_file_that_is_cut_off_anywhere_keeps_the_rows_before() {
    let folder = TempDir::new("journal-cut");
    let path = folder.path().join("2026-11-25T09.json.gz");
    let mut hour = Hour::new(MOST);
    (0..40).for_each(|n| hour.count(&at("2026-11-25T09:00:01.000Z", &format!("default/p{n}"), 1)));
    write(&hour, &path);
    let whole = fs::read(&path).unwrap();
    let mut kept = Vec::new();
    for length in 0..=whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        match read_file(&path) {
            Ok(found) => {
                assert_eq!(found.damage.is_none(), length == whole.len(), "{length}");
                kept.push(found.rows.len());
                let (hour, damage) = Hour::resume(&path, MOST).unwrap();
                assert_eq!((hour.rows.len(), damage), (found.rows.len(), found.damage));
            }
            Err(error) => {
                assert!(
                    error.to_string().starts_with("line 1: is not the head"),
                    "{length}: {error}"
                )
            }
        }
    }
    assert!(kept.is_sorted() && kept.last() == Some(&40), "{kept:?}");
    // Flipped bits lose rows behind them, and end no reading.
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        let _ = read_file(&path);
    }
}

/// Bytes of rows, and of the file that they take.
fn sizes(hour: &Hour) -> [u64; 2] {
    let mut file = Vec::new();
    hour.write("node-a", &mut file).unwrap();
    let mut rows = Vec::new();
    let read = GzDecoder::new(&file[..]).read_to_end(&mut rows).unwrap();
    [read as u64, file.len() as u64]
}

#[test]
fn the_reach_of_a_journal_is_what_its_rows_take() {
    let begin = moment("2026-11-25T09:00:00.000Z").unwrap();
    let connection = |pod: u32, peer: u32| {
        let name = format!("shop-{}/checkout-6f7d4c9b8{}-x{}", pod % 7, pod % 10, pod * 7919);
        let time = begin + std::time::Duration::from_millis(u64::from(pod * 97 + peer * 7919));
        let to = End {
            pod: Some(format!("shop-{}/cart-{}", peer % 5, peer * 104_729).into()),
            ip: Some(IpAddr::from([10, 1, (peer / 250) as u8, (peer % 250) as u8])),
            ..denied().to
        };
        Event { to, ..at(&utc(time), &name, 4000) }
    };
    let mut usual = Hour::new(MOST);
    for pod in 0..110 {
        (0..20).for_each(|peer| usual.count(&connection(pod, pod * 20 + peer)));
    }
    let [_, file] = sizes(&usual);
    assert!((USUAL_HOUR / 2..=USUAL_HOUR).contains(&file), "{file} bytes");
    let mut full = Hour::new(1 << 20);
    (0..)
        .take_while(|n| {
            full.count(&connection(n % 500, *n));
            full.left_out() == 0
        })
        .for_each(drop);
    let [rows, file] = sizes(&full);
    assert!((COMPRESSION..=2 * COMPRESSION).contains(&(rows / file)), "{rows} bytes in {file}");
    let reach = Reach::of(256_000_000);
    assert_eq!((reach.usual_hours, reach.least_hours), (1280, 30));
}
