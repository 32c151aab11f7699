//! Shared parts of the commands that call the running switch.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use cli_runtime::{NO, Output, fail, no_answer, print, write};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Writes the only answer, as text or as a line of JSON.
///
/// # Errors
/// The exit code, if it has no form in JSON.
pub fn print_whole<T: Serialize + Display>(
    answer: &T,
    output: Output,
) -> Result<ExitCode, ExitCode> {
    Ok(print(&match output {
        Output::Text => answer.to_string(),
        Output::Json => serde_json::to_string(answer).map_err(|error| fail(NO, error))? + "\n",
    }))
}

/// Writes one of several lines.
///
/// # Errors
/// The exit code, if stdout cannot be written or its reader has left.
pub fn write_line(line: String) -> Result<(), ExitCode> {
    written(write(&(line + "\n")))
}

/// Turns the result of a write into one of a command.
///
/// # Errors
/// The exit code, if stdout cannot be written or its reader has left.
pub fn written(result: io::Result<bool>) -> Result<(), ExitCode> {
    match result {
        Ok(true) => Ok(()),
        Ok(false) => Err(ExitCode::SUCCESS),
        Err(error) => Err(fail(NO, format_args!("write to stdout: {error}"))),
    }
}

/// Writes one of several answers, as text or as a line of JSON.
///
/// # Errors
/// The exit code, if the answer is no `T` or if stdout cannot be written.
pub fn print_line<T>(answer: Value, output: Output) -> Result<(), ExitCode>
where
    T: DeserializeOwned + Serialize + Display,
{
    let line: T = serde_json::from_value(answer).map_err(no_answer)?;
    write_line(match output {
        Output::Text => line.to_string(),
        Output::Json => serde_json::to_string(&line).map_err(no_answer)?,
    })
}
