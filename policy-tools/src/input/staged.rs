//! Manifests that are not files: a revision of git, a live cluster.
//!
//! They are written into a folder of their own, and read as files are. So is what charts and kustomizations make.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use control::api_server::{Access, connect, list};
use control::{Kind, manifests};
use serde_json::{Value, json};

use super::unrendered::{Folder, display, normal};
use super::{Manifests, Reading};

/// Paths to read, with the files staged for those that are not files.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    pub(crate) paths: Vec<PathBuf>,
    /// The file with the objects of the live cluster.
    pub(crate) live: Option<PathBuf>,
    folder: Option<PathBuf>,
    /// The original paths of staged ones.
    names: Vec<(PathBuf, String)>,
    /// Files and folders that rendered ones replace.
    rendered: BTreeSet<PathBuf>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl Staged {
    /// Fetches revisions that `paths` name and a live cluster, and renders charts and kustomizations if asked. With
    /// `again` standard input can be read again.
    pub(crate) fn new(
        paths: &[PathBuf],
        kubeconfig: Option<&Path>,
        again: bool,
        reading: &Reading,
    ) -> Result<Self, Vec<String>> {
        let mut staged = Self::default();
        let again = again || reading.render;
        let mut faults = Vec::new();
        for path in paths {
            let fetched = match revision(path) {
                Some((revision, inside)) => staged.revision(path, revision, inside, reading.render),
                None if path.as_os_str() == "-" && again => staged.stdin(),
                None => Ok(path.clone()),
            };
            match fetched {
                Ok(path) => staged.paths.push(path),
                Err(problem) => faults.push(format!("{}: {problem}", path.display())),
            }
        }
        if reading.render && faults.is_empty() {
            faults.extend(staged.render(reading));
        }
        if let Some(kubeconfig) = kubeconfig {
            match staged.cluster(kubeconfig, reading.context.clone()) {
                Ok(file) => staged.live = Some(file),
                Err(problem) => faults.push(problem.to_string()),
            }
        }
        if faults.is_empty() { Ok(staged) } else { Err(faults) }
    }

    /// Replaces staged paths in a message by the user's own.
    pub(crate) fn named(&self, message: &str) -> String {
        let mut message = message.to_owned();
        for (path, name) in &self.names {
            message = message.replace(&path.display().to_string(), name);
        }
        message
    }

    fn folder(&mut self) -> io::Result<PathBuf> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("podgate-input-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // It must be new, so that no other user has prepared it.
        fs::create_dir(&folder).map_err(|error| named(&folder, &error))?;
        self.folder = Some(folder.clone());
        Ok(folder)
    }

    fn stdin(&mut self) -> io::Result<PathBuf> {
        let text = control::read_bounded(io::stdin().lock(), manifests::LONGEST);
        let text =
            text.map_err(|error| io::Error::new(error.kind(), format!("cannot be read: {error}")))?;
        self.write("stdin.yaml", &text, "stdin")
    }

    fn write(&mut self, file: &str, text: &[u8], name: &str) -> io::Result<PathBuf> {
        let file = self.folder()?.join(file);
        fs::write(&file, text).map_err(|error| named(&file, &error))?;
        self.names.push((file.clone(), name.to_owned()));
        Ok(file)
    }

    /// Renders charts and kustomizations; returns the faults.
    fn render(&mut self, reading: &Reading) -> Vec<String> {
        let (found, ..) = Manifests::read_staged(self, reading);
        let mut faults = Vec::new();
        for (n, Folder { folder, is_chart, sources, .. }) in
            found.unrendered.into_iter().enumerate()
        {
            let shown = self.named(&display(&folder));
            let file = format!("rendered{n}.yaml");
            let made = render(&folder, is_chart);
            match made.and_then(|text| self.write(&file, &text, &format!("{shown} (rendered)"))) {
                Ok(file) => self.paths.push(file),
                Err(problem) => faults.push(format!("{shown}: --render: {problem}")),
            }
            self.rendered.extend(sources);
        }
        faults
    }

    /// Returns whether a file was rendered.
    pub(crate) fn is_rendered(&self, file: &Path) -> bool {
        !self.rendered.is_empty() && normal(file).ancestors().any(|it| self.rendered.contains(it))
    }

    fn revision(
        &mut self,
        path: &Path,
        revision: &str,
        inside: &str,
        with_all_files: bool,
    ) -> io::Result<PathBuf> {
        let inside = inside.trim_end_matches('/');
        let object = format!("{revision}:{inside}");
        let kind = git(&["cat-file", "-t", &object])?;
        let root = self.folder()?.join(format!("revision{}", self.names.len()));
        let name = path.display().to_string();
        if kind.trim_ascii() == b"blob" {
            let file = inside.rsplit('/').next().unwrap_or("file.yaml");
            fs::create_dir(&root)?;
            fs::write(root.join(file), git(&["show", &object])?)?;
            self.names.push((root.join(file), name));
            return Ok(root.join(file));
        }
        fs::create_dir(&root)?;
        let files = git(&["ls-tree", "-r", "-z", "--name-only", &object])?;
        for file in String::from_utf8_lossy(&files).split('\0').filter(|file| !file.is_empty()) {
            let is_manifest = [".yaml", ".yml", ".json"].iter().any(|end| file.ends_with(end));
            let is_inside = !file.split('/').any(|part| part == "..");
            if !(is_manifest || with_all_files) || !is_inside {
                continue;
            }
            let to = root.join(file);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            let separator = if inside.is_empty() { "" } else { "/" };
            let text = git(&["show", &format!("{object}{separator}{file}")])?;
            fs::write(&to, text)?;
        }
        self.names.push((root.clone(), name.trim_end_matches('/').to_owned()));
        Ok(root)
    }

    fn cluster(&mut self, kubeconfig: &Path, context: Option<String>) -> io::Result<PathBuf> {
        let access = match context {
            None => Access::Kubeconfig(kubeconfig.to_owned()),
            context => Access::User { kubeconfig: Some(kubeconfig.to_owned()), context },
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let objects: io::Result<Vec<Value>> = runtime?.block_on(async {
            let connection = connect(&access).await.map_err(io::Error::other)?;
            let mut objects = Vec::new();
            for kind in Kind::ALL {
                let found = list(&connection, kind).await;
                let failed = |error| io::Error::other(format!("{}: {error}", connection.server));
                objects.extend(found.map_err(failed)?);
            }
            Ok(objects)
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects?});
        self.write("cluster.json", list.to_string().as_bytes(), "the live cluster")
    }
}

/// The revision and the path in it that a path stands for: `REV:PATH`, unless it is a file.
fn revision(path: &Path) -> Option<(&str, &str)> {
    if path.exists() {
        return None;
    }
    let (revision, inside) = path.to_str()?.split_once(':')?;
    // A revision that began with a dash would be an option of git.
    (!revision.is_empty() && !revision.starts_with('-')).then_some((revision, inside))
}

fn git(arguments: &[&str]) -> io::Result<Vec<u8>> {
    printed(Command::new("git").args(arguments))
}

/// The objects of a chart or a kustomization, by the program that makes them.
fn render(folder: &Path, is_chart: bool) -> io::Result<Vec<u8>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if is_chart {
        return printed(Command::new("helm").arg("template").arg(folder));
    }
    let kubectl = printed(Command::new("kubectl").arg("kustomize").arg(folder));
    kubectl.or_else(|problem| match problem.kind() {
        io::ErrorKind::NotFound => printed(Command::new("kustomize").arg("build").arg(folder)),
        _ => Err(problem),
    })
}

/// Runs a program and returns its output. The kind of the error is `NotFound` if there is no such program.
fn printed(command: &mut Command) -> io::Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("{name} cannot be run: {error}"));
    let output = output.map_err(failed)?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(format!("{name}: {}", said.trim().trim_start_matches("fatal: "))))
        }
    }
}

/// The same error with the path it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
