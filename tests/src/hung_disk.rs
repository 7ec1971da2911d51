//! A file system that never answers, like one whose server is gone. Only root can mount it.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The file system, until it is dropped. Processes that wait for it then get an error.
pub struct HungDisk {
    folder: PathBuf,
    /// The FUSE device: its requests are never read.
    device: Option<File>,
}

impl HungDisk {
    /// Mounts the file system over this folder.
    ///
    /// # Panics
    /// The system has no FUSE, or this is not root.
    #[track_caller]
    pub fn mount(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).expect("no NUL");
        mount("hung", folder, "fuse", MountFlags::empty(), Some(&*options)).expect("a mount");
        Self { folder: folder.to_owned(), device: Some(device) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        // Closing the device makes all requests fail at once.
        drop(self.device.take());
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}
