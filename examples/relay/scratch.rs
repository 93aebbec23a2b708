//! Files that nobody else sees and that are gone with the process, however it ends.

use std::fs::File;
use std::io;
use std::path::Path;

/// An empty file in `dir`, for writing and reading again.
pub fn file(dir: &Path, name: &str) -> io::Result<File> {
    let path = dir.join(format!(".{name}.{}", std::process::id()));
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).map_err(named)?;
    std::fs::remove_file(&path).map_err(named)?;
    Ok(file)
}
