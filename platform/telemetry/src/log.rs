//! The log: one line an event on standard error, as text or as JSON.

use std::fs::File;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::MakeWriterExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// Format of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Time, level and message.
    #[default]
    Text,
    /// An object with the fields `timestamp`, `level` and `message`.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("'{other}' is not text or json")),
        }
    }
}

/// Libraries that log their own routine; only their warnings are shown.
const LIBRARIES: [&str; 6] = ["h2", "hyper", "mio", "rustls", "tokio", "tower"];

/// Logs failures of requests without the request's name ("failed with error client error (Connect)").
/// Callers log each of them with kind and cause.
const SILENT: &str = "kube";

/// Sets the level of the running log.
type SetLevel = Box<dyn Fn(Level) + Send + Sync>;
static SET_LEVEL: OnceLock<SetLevel> = OnceLock::new();

/// Logs events of `level` and above to standard error. A second call changes nothing.
pub fn start(level: Level, format: Format) {
    let (subscriber, set_level) = subscriber(level, format, std::io::stderr);
    // It fails only if the process logs already.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = SET_LEVEL.set(set_level);
    }
}

/// Sets the level of the log that [`start`] began; `false` if there is none.
pub fn set_level(level: Level) -> bool {
    SET_LEVEL.get().map(|set| set(level)).is_some()
}

/// Logs as [`start`] does, to a file, and with `also` to standard error too.
pub fn start_in(file: File, also: bool, level: Level, format: Format) {
    let file = Arc::new(file);
    let _ = match also {
        true => tracing::subscriber::set_global_default(
            subscriber(level, format, file.and(std::io::stderr)).0,
        ),
        false => tracing::subscriber::set_global_default(subscriber(level, format, file).0),
    };
}

fn filter(level: Level) -> Targets {
    let libraries = LIBRARIES.map(|name| (name, LevelFilter::WARN));
    Targets::new().with_default(level).with_targets(libraries).with_target(SILENT, LevelFilter::OFF)
}

/// A subscriber, and what sets its level.
fn subscriber<W>(
    level: Level,
    format: Format,
    writer: W,
) -> (impl tracing::Subscriber + Send + Sync, SetLevel)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (reloaded, handle) = reload::Layer::new(filter(level));
    // It fails only once the subscriber is gone.
    let set_level = Box::new(move |level| drop(handle.reload(filter(level))));
    // A closed standard error is no reason to end the process.
    let layer = fmt::layer()
        .with_writer(writer)
        .with_ansi(false)
        .with_target(false)
        .log_internal_errors(false);
    let layer = match format {
        Format::Text => layer.boxed(),
        Format::Json => layer.json().flatten_event(true).with_current_span(false).boxed(),
    };
    (Registry::default().with(layer.with_filter(reloaded)), set_level)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: Level, format: Format, events: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let (subscriber, _) = subscriber(level, format, move || writer.clone());
        tracing::subscriber::with_default(subscriber, events);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn text_has_time_level_and_message() {
        let text = logged(Level::INFO, Format::Text, || {
            tracing::warn!("port {} is down", 3);
            tracing::debug!("not at this level");
        });
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!(rest, " WARN port 3 is down\n");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = logged(Level::INFO, Format::Json, || {
            tracing::info!(pod = "default/db", "attached \"db\"");
        });
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["level"], "INFO");
        assert_eq!(value["message"], "attached \"db\"");
        assert_eq!(value["pod"], "default/db");
        assert!(value["timestamp"].is_string());
    }

    #[test]
    fn of_libraries_only_warnings_are_logged() {
        let text = logged(Level::DEBUG, Format::Text, || {
            tracing::info!(target: "hyper_util::client", "pooling idle connection");
            tracing::warn!(target: "rustls::verify", "certificate expires");
            tracing::error!(target: "kube_client::client", "failed with error");
            tracing::debug!("ours");
        });
        assert!(!text.contains("pooling") && !text.contains("failed with error"), "{text}");
        assert!(text.contains("certificate expires") && text.contains("ours"), "{text}");
    }

    #[test]
    fn the_level_changes_while_it_runs() {
        let sink = Sink::default();
        let writer = sink.clone();
        let (subscriber, set_level) = subscriber(Level::INFO, Format::Text, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            for (n, level) in [Level::INFO, Level::DEBUG, Level::WARN].into_iter().enumerate() {
                set_level(level);
                tracing::info!("event {n}");
                tracing::debug!("detail {n}");
            }
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        let shown: Vec<&str> = text.lines().filter_map(|line| line.get(34..)).collect();
        assert_eq!(shown, ["event 0", "event 1", "detail 1"], "{text}");
    }

    #[test]
    fn formats_by_name() {
        assert_eq!("json".parse(), Ok(Format::Json));
        assert_eq!("text".parse(), Ok(Format::Text));
        assert_eq!("xml".parse::<Format>(), Err("'xml' is not text or json".to_owned()));
    }
}
