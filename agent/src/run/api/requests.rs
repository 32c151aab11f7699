//! Requests of one connection and their answers.

use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Instant;

use local_api::{Answer, ApiError, ErrorKind, FrameError, REQUEST_BYTES, Request, TraceAdd};
use local_api::{read_line, write_line};
use observe::trace;
use observe::verdicts::Filter;
use serde_json::json;

use super::connections::{Connection, Doing, Shared};
use super::streams::{follow_session_rules, has_left, observe};
use crate::run::capture;
use crate::run::events::{Event, keep_labels};
use crate::run::shared_status::SharedStatus;
use crate::run::show::show;
use crate::run::status::Status;

/// Serves the requests of a connection in order.
pub(super) fn serve(stream: UnixStream, connection: &Connection) -> io::Result<()> {
    let shared = &*connection.shared;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let line = match read_line(&mut reader, REQUEST_BYTES) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(FrameError::Io(error)) => return Err(error),
            Err(error) => {
                let error = ApiError::new(ErrorKind::BadRequest, format!("request: {error}"));
                return write_line(&mut writer, &Answer::from(error));
            }
        };
        let request = Request::parse(&line).and_then(|request| {
            connection.does(match request {
                Request::AttachPod(_) => Doing::Attaching,
                Request::Observe(_) | Request::FollowSessionRules => Doing::Streaming,
                Request::Capture(_) => Doing::Capturing,
                _ => Doing::Answering,
            })?;
            Ok(request)
        });
        let answer = match request {
            Err(error) => error.into(),
            Ok(Request::Observe(filters)) => match Filter::new(*filters) {
                Err(error) => error.into(),
                Ok(filter) => match unknown(&filter, shared) {
                    // What is followed may come yet.
                    Some(unknown) if !filter.follow() => {
                        let text = format!("observe: no {unknown} is known");
                        ApiError::new(ErrorKind::NotFound, text).into()
                    }
                    unknown => {
                        if let Some(unknown) = unknown {
                            let notice = json!({ "notice": format!("no {unknown} is known yet") });
                            write_line(&mut writer, &Answer::Result(notice))?;
                        }
                        return observe(reader, &mut writer, shared, filter);
                    }
                },
            },
            Ok(Request::FollowSessionRules) => {
                return follow_session_rules(reader, &mut writer, shared);
            }
            Ok(Request::Capture(wanted)) => {
                let stops = || shared.stop.load(Ordering::Acquire);
                let status = &shared.status;
                return capture::stream(reader, &mut writer, status, &wanted, has_left, stops);
            }
            Ok(Request::TraceShow) => return show_trace(&mut writer, &shared.status),
            Ok(request) => answer(request, shared),
        };
        write_line(&mut writer, &answer)?;
        // This class has no bound of its own.
        let _ = connection.does(Doing::Idle(Instant::now()));
    }
}

/// The object of a filter that is not known. Labels that it needs are kept from now on.
fn unknown(filter: &Filter, shared: &Shared) -> Option<String> {
    if filter.needs_labels() {
        let events = shared.events.lock().clone();
        keep_labels(&events);
    }
    shared.status.unknown(filter)
}

fn answer(request: Request, shared: &Shared) -> Answer {
    let status = &shared.status;
    match request {
        Request::Status => Answer::result(&Status::of(status)),
        Request::Show(wanted) => {
            let events = shared.events.lock().clone();
            match show(status, &events, &wanted) {
                Ok(table) => Answer::Result(table),
                Err(error) => error.into(),
            }
        }
        Request::TraceAdd(wanted) => match begin_trace(status, &wanted) {
            Ok(()) => Answer::Result(json!({})),
            Err(text) => ApiError::new(ErrorKind::BadRequest, format!("trace-add: {text}")).into(),
        },
        Request::TraceClear => {
            status.clear_trace();
            Answer::Result(json!({}))
        }
        Request::LogLevel(wanted) => match wanted.level.parse::<tracing::Level>() {
            Ok(level) if telemetry::log::set_level(level) => {
                tracing::info!("log-level: {level}");
                Answer::Result(json!({}))
            }
            Ok(_) => ApiError::new(ErrorKind::Conflict, "log-level: there is no log").into(),
            Err(_) => {
                let text = format!("log-level: '{}' is no level", wanted.level.escape_debug());
                ApiError::new(ErrorKind::BadRequest, text).into()
            }
        },
        Request::RotateKey => match &status.encryption {
            None => ApiError::new(ErrorKind::Conflict, "encryption is off").into(),
            Some(_) if status.config.api_server.is_none() => {
                let text = "rotate-key: objects come from manifests, so nobody would publish the next key; \
                            it needs an API server";
                ApiError::new(ErrorKind::Conflict, text).into()
            }
            Some(encryption) => match encryption.rotate_key() {
                Ok(()) => Answer::Result(json!({})),
                Err(error) => error.into(),
            },
        },
        Request::Ready if status.is_ready() && status.unhealthy_reasons().is_empty() => {
            Answer::Result(json!({}))
        }
        Request::Ready => {
            let unhealthy_reasons = status.unhealthy_reasons().join("; ");
            let why = if unhealthy_reasons.is_empty() {
                status.unready().unwrap_or("busy")
            } else {
                &unhealthy_reasons
            };
            ApiError::new(ErrorKind::NotReady, why).into()
        }
        other => {
            let (sender, receiver) = channel();
            let events = shared.events.lock().clone();
            let sent = events.send(Event::Request(other, sender)).is_ok();
            drop(events);
            match receiver.recv() {
                Ok(answer) if sent => answer,
                _ => ApiError::new(ErrorKind::NotReady, "podgate is ending").into(),
            }
        }
    }
}

fn begin_trace(status: &SharedStatus, wanted: &TraceAdd) -> Result<(), String> {
    if !(1..=trace::MOST).contains(&wanted.count) {
        return Err(format!("count: {} is not between 1 and {}", wanted.count, trace::MOST));
    }
    let filter = trace::parse(&wanted.filter, |pod| status.broker.directory().addresses_of(pod))?;
    status.begin_trace(filter, wanted.count);
    Ok(())
}

/// Sends the packets traced so far.
fn show_trace(writer: &mut UnixStream, status: &SharedStatus) -> io::Result<()> {
    let (lines, wanted) = status.trace.lines(&status.switch);
    for line in &lines {
        write_line(writer, &Answer::result(line))?;
    }
    let end = json!({ "followed": lines.len(), "wanted": wanted });
    write_line(writer, &Answer::Result(end))
}
