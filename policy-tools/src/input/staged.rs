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

/// Paths to read, with the files behind those that are none.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    pub(crate) paths: Vec<PathBuf>,
    /// The file with the objects of the live cluster.
    pub(crate) live: Option<PathBuf>,
    folder: Option<PathBuf>,
    /// The original paths of staged ones.
    names: Vec<(PathBuf, String)>,
    /// Files and folders in the place of which rendered ones are read.
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
    /// Fetches what `paths` name beside files, and a live cluster, and renders what is to be rendered. With `again`
    /// standard input can be read again.
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
            match staged.cluster(kubeconfig) {
                Ok(file) => staged.live = Some(file),
                Err(problem) => faults.push(problem),
            }
        }
        if faults.is_empty() { Ok(staged) } else { Err(faults) }
    }

    /// A message with staged paths as their user knows them.
    pub(crate) fn named(&self, message: &str) -> String {
        let mut message = message.to_owned();
        for (path, name) in &self.names {
            message = message.replace(&path.display().to_string(), name);
        }
        message
    }

    fn folder(&mut self) -> Result<PathBuf, String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        if let Some(folder) = &self.folder {
            return Ok(folder.clone());
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("podgate-input-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // It must be new: another user may not have prepared it.
        let made = fs::create_dir(&folder);
        made.map_err(|error| format!("{}: {error}", folder.display()))?;
        self.folder = Some(folder.clone());
        Ok(folder)
    }

    fn stdin(&mut self) -> Result<PathBuf, String> {
        let text = control::read_bounded(io::stdin().lock(), manifests::LONGEST);
        let text = text.map_err(|error| format!("cannot be read: {error}"))?;
        self.write("stdin.yaml", &text, "stdin")
    }

    fn write(&mut self, file: &str, text: &[u8], name: &str) -> Result<PathBuf, String> {
        let file = self.folder()?.join(file);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        self.names.push((file.clone(), name.to_owned()));
        Ok(file)
    }

    /// Renders charts and kustomizations; returns what went wrong.
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

    /// Whether a file is one that was rendered.
    pub(crate) fn is_rendered(&self, file: &Path) -> bool {
        !self.rendered.is_empty() && normal(file).ancestors().any(|it| self.rendered.contains(it))
    }

    fn revision(
        &mut self,
        path: &Path,
        revision: &str,
        inside: &str,
        with_all_files: bool,
    ) -> Result<PathBuf, String> {
        let inside = inside.trim_end_matches('/');
        let object = format!("{revision}:{inside}");
        let kind = git(&["cat-file", "-t", &object])?;
        let root = self.folder()?.join(format!("revision{}", self.names.len()));
        let name = path.display().to_string();
        let failed = |error: io::Error| error.to_string();
        if kind.trim_ascii() == b"blob" {
            let file = inside.rsplit('/').next().unwrap_or("file.yaml");
            fs::create_dir(&root).map_err(failed)?;
            fs::write(root.join(file), git(&["show", &object])?).map_err(failed)?;
            self.names.push((root.join(file), name));
            return Ok(root.join(file));
        }
        fs::create_dir(&root).map_err(failed)?;
        let files = git(&["ls-tree", "-r", "-z", "--name-only", &object])?;
        for file in String::from_utf8_lossy(&files).split('\0').filter(|file| !file.is_empty()) {
            let is_manifest = [".yaml", ".yml", ".json"].iter().any(|end| file.ends_with(end));
            let is_inside = !file.split('/').any(|part| part == "..");
            if !(is_manifest || with_all_files) || !is_inside {
                continue;
            }
            let to = root.join(file);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder).map_err(failed)?;
            }
            let separator = if inside.is_empty() { "" } else { "/" };
            let text = git(&["show", &format!("{object}{separator}{file}")])?;
            fs::write(&to, text).map_err(failed)?;
        }
        self.names.push((root.clone(), name.trim_end_matches('/').to_owned()));
        Ok(root)
    }

    fn cluster(&mut self, kubeconfig: &Path) -> Result<PathBuf, String> {
        let access = Access::Kubeconfig(kubeconfig.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let objects: Result<Vec<Value>, String> = runtime.block_on(async {
            let connection = connect(&access).await.map_err(|error| error.to_string())?;
            let mut objects = Vec::new();
            for kind in Kind::ALL {
                let found = list(&connection, kind).await;
                let failed = |error| format!("{}: {}: {error}", connection.server, kind.plural());
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

fn git(arguments: &[&str]) -> Result<Vec<u8>, String> {
    printed(Command::new("git").args(arguments)).map_err(|problem| problem.replace("fatal: ", ""))
}

/// The objects of a chart or a kustomization, by the program that makes them.
fn render(folder: &Path, is_chart: bool) -> Result<Vec<u8>, String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if is_chart {
        return printed(Command::new("helm").arg("template").arg(folder));
    }
    let kubectl = printed(Command::new("kubectl").arg("kustomize").arg(folder));
    kubectl.or_else(|problem| match problem.starts_with(&cannot_run("kubectl")) {
        true => printed(Command::new("kustomize").arg("build").arg(folder)),
        false => Err(problem),
    })
}

/// Runs a program and returns its output.
fn printed(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{}: {error}", cannot_run(&name)))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn cannot_run(program: &str) -> String {
    format!("{program} cannot be run")
}
