/* I/O errors on demand: loaded into a broker by LD_PRELOAD. While the file NEMESIS_IO_ERRORS exists,
 * writes to and syncs of regular files below NEMESIS_IO_DIR fail with EIO. Built by ioerrors.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int broken(int fd) {
    const char *control = getenv("NEMESIS_IO_ERRORS");
    const char *directory = getenv("NEMESIS_IO_DIR");
    char link[64], path[PATH_MAX];
    int saved = errno;
    if (control == NULL || directory == NULL || access(control, F_OK) != 0) {
        errno = saved;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) {
        errno = saved;
        return 0;
    }
    path[length] = '\0';
    if (strncmp(path, directory, strlen(directory)) != 0) {
        errno = saved;
        return 0;
    }
    errno = EIO;
    return 1;
}

#define REAL(function) \
    static __typeof__(&function) real; \
    if (real == NULL) real = (__typeof__(&function))dlsym(RTLD_NEXT, #function)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    return broken(fd) ? -1 : real(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    return broken(fd) ? -1 : real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    return broken(fd) ? -1 : real(fd, data, size, at);
}

int fsync(int fd) {
    REAL(fsync);
    return broken(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return broken(fd) ? -1 : real(fd);
}
