/* Makes calls of the operating system fail, in a process that has this library in LD_PRELOAD.

   fail_calls(below, kinds, first, count, error): of the calls of these kinds that concern a file whose path begins with
   `below`, those from the `first` (1, 2, ...) on fail with `error`, `count` of them. fail_calls("", 0, 0, 0, 0) ends that.
   failed_calls() says how many calls failed. Kinds are added: 1 writes, 2 syncs, 4 sizes, 8 opening, 16 looking. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, SIZES = 4, OPENING = 8, LOOKING = 16 };

static char wanted_path[4096];
static int wanted_kinds, first_call, last_call, wanted_error, seen, failed;

void fail_calls(const char *below, int kinds, int first, int count, int error) {
    wanted_kinds = 0;
    strncpy(wanted_path, below, sizeof wanted_path - 1);
    first_call = first, last_call = first + count - 1, wanted_error = error, seen = failed = 0;
    wanted_kinds = kinds;
}

int failed_calls(void) { return failed; }

static int path_fails(int kind, const char *path) {
    if (strncmp(path, wanted_path, strlen(wanted_path)))
        return 0;
    int number = __sync_add_and_fetch(&seen, 1);
    if (number < first_call || number > last_call)
        return 0;
    __sync_add_and_fetch(&failed, 1);
    errno = wanted_error;
    return 1;
}

static int fails(int kind, int fd) {
    char link[64], path[4096];
    if (!(wanted_kinds & kind))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return path_fails(kind, path);
}

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })
#define WITH_FD(result, name, kind, parameters, ...) \
    result name parameters { return fails(kind, fd) ? -1 : REAL(name)(__VA_ARGS__); }

WITH_FD(ssize_t, write, WRITES, (int fd, const void *data, size_t size), fd, data, size)
WITH_FD(ssize_t, writev, WRITES, (int fd, const struct iovec *pieces, int count), fd, pieces, count)
WITH_FD(ssize_t, pwrite, WRITES, (int fd, const void *data, size_t size, off_t at), fd, data, size, at)
WITH_FD(ssize_t, pwrite64, WRITES, (int fd, const void *data, size_t size, off64_t at), fd, data, size, at)
WITH_FD(ssize_t, pwritev, WRITES, (int fd, const struct iovec *pieces, int count, off_t at), fd, pieces, count, at)
WITH_FD(ssize_t, pwritev64, WRITES, (int fd, const struct iovec *pieces, int count, off64_t at), fd, pieces, count, at)
WITH_FD(ssize_t, pwritev2, WRITES, (int fd, const struct iovec *pieces, int count, off_t at, int flags), fd, pieces,
        count, at, flags)
WITH_FD(ssize_t, pwritev64v2, WRITES, (int fd, const struct iovec *pieces, int count, off64_t at, int flags), fd,
        pieces, count, at, flags)
WITH_FD(int, fsync, SYNCS, (int fd), fd)
WITH_FD(int, fdatasync, SYNCS, (int fd), fd)
WITH_FD(int, ftruncate, SIZES, (int fd, off_t size), fd, size)
WITH_FD(int, ftruncate64, SIZES, (int fd, off64_t size), fd, size)
WITH_FD(int, fallocate, SIZES, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
WITH_FD(int, fallocate64, SIZES, (int fd, int mode, off64_t at, off64_t size), fd, mode, at, size)

int posix_fallocate(int fd, off_t at, off_t size) {
    return fails(SIZES, fd) ? errno : REAL(posix_fallocate)(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return fails(SIZES, fd) ? errno : REAL(posix_fallocate64)(fd, at, size);
}

#define WITH_MODE(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return wanted_kinds & OPENING && path_fails(OPENING, path) ? -1 : REAL(name)(path, flags, mode); \
    }
WITH_MODE(open)
WITH_MODE(open64)

#define WITH_PATH(name, parameters, ...) \
    int name parameters { return wanted_kinds & LOOKING && path_fails(LOOKING, path) ? -1 : REAL(name)(__VA_ARGS__); }

DIR *opendir(const char *path) { return wanted_kinds & LOOKING && path_fails(LOOKING, path) ? NULL : REAL(opendir)(path); }

WITH_PATH(stat, (const char *path, struct stat *found), path, found)
WITH_PATH(stat64, (const char *path, struct stat64 *found), path, found)
WITH_PATH(lstat, (const char *path, struct stat *found), path, found)
WITH_PATH(lstat64, (const char *path, struct stat64 *found), path, found)
WITH_PATH(fstatat, (int fd, const char *path, struct stat *found, int flags), fd, path, found, flags)
WITH_PATH(fstatat64, (int fd, const char *path, struct stat64 *found, int flags), fd, path, found, flags)
