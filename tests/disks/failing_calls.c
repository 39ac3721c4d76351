/* Makes calls of the operating system fail, in a process that has this library in LD_PRELOAD.

   fail_calls(below, kinds, first, count, error): of the calls of these kinds that concern a file whose path begins with
   `below`, those from the `first` (1, 2, ...) on fail with `error`, `count` of them. fail_calls("", 0, 0, 0, 0) ends that.
   failed_calls() says how many calls failed. Kinds are added: 1 writes, 2 syncs, 4 sizes, 8 opening, 16 looking.

   With a negative error the power fails instead, before the `first` call: the process ends with status 99, after what it wrote
   below `below` and did not sync was taken back: all of that (-1), or every other write (-2). Files keep their names and sizes. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, SIZES = 4, OPENING = 8, LOOKING = 16 };

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

static char wanted_path[4096];
static int wanted_kinds, first_call, last_call, wanted_error, seen, failed;

void fail_calls(const char *below, int kinds, int first, int count, int error) {
    wanted_kinds = 0;
    strncpy(wanted_path, below, sizeof wanted_path - 1);
    first_call = first, last_call = first + count - 1, wanted_error = error, seen = failed = 0;
    wanted_kinds = kinds;
}

int failed_calls(void) { return failed; }

/* -- what was written and not synced: bytes that were there before, the newest first -- */

enum { KEEPS_OTHERS = -2, LOSES_ALL = -1 };

struct before {
    char path[4096];
    off_t at;
    size_t size;
    char *data;
    struct before *next;
};
static struct before *unsynced;
static pthread_mutex_t unsynced_lock = PTHREAD_MUTEX_INITIALIZER;

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, 4095);
    path[size < 0 ? 0 : size] = 0;
    return size >= 0 && !strncmp(path, wanted_path, strlen(wanted_path));
}

static void remember(int fd, off_t at, size_t size) {
    struct before *each;
    if (wanted_error >= 0 || !wanted_kinds || fcntl(fd, F_GETFL) & O_DSYNC || !(each = calloc(1, sizeof *each)))
        return;
    int own = path_of(fd, each->path) ? open(each->path, O_RDONLY | O_CLOEXEC) : -1;
    if (own < 0) {
        free(each);
        return;
    }
    each->at = at, each->data = calloc(1, size ? size : 1);
    ssize_t found = pread(own, each->data, size, at); /* what was behind the end of the file becomes zeros */
    each->size = found < 0 ? 0 : size;
    close(own);
    pthread_mutex_lock(&unsynced_lock);
    each->next = unsynced, unsynced = each;
    pthread_mutex_unlock(&unsynced_lock);
}

static void synced(int fd) {
    char path[4096];
    if (wanted_error >= 0 || !wanted_kinds || !path_of(fd, path))
        return;
    pthread_mutex_lock(&unsynced_lock);
    for (struct before **each = &unsynced; *each;)
        if (!strcmp((*each)->path, path))
            *each = (*each)->next;
        else
            each = &(*each)->next;
    pthread_mutex_unlock(&unsynced_lock);
}

static void lose_power(void) {
    int number = 0;
    wanted_kinds = 0;
    pthread_mutex_lock(&unsynced_lock);
    for (struct before *each = unsynced; each; each = each->next) {
        int fd = open(each->path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && (wanted_error == LOSES_ALL || number++ % 2 == 0))
            REAL(pwrite)(fd, each->data, each->size, each->at);
    }
    _exit(99);
}

static int path_fails(int kind, const char *path) {
    if (strncmp(path, wanted_path, strlen(wanted_path)))
        return 0;
    int number = __sync_add_and_fetch(&seen, 1);
    if (number < first_call || number > last_call)
        return 0;
    if (wanted_error < 0)
        lose_power();
    __sync_add_and_fetch(&failed, 1);
    errno = wanted_error;
    return 1;
}

static int fails(int kind, int fd) {
    char path[4096];
    return wanted_kinds & kind && path_of(fd, path) && path_fails(kind, path);
}

static size_t total(const struct iovec *pieces, int count) {
    size_t size = 0;
    for (int each = 0; each < count; each++)
        size += pieces[each].iov_len;
    return size;
}

static off_t place(int fd) {
    return fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
}

#define WRITES_FD(result, name, parameters, at, size, ...) \
    result name parameters { \
        if (fails(WRITES, fd)) \
            return -1; \
        remember(fd, at, size); \
        return REAL(name)(__VA_ARGS__); \
    }
#define SYNCS_FD(name) \
    int name(int fd) { \
        if (fails(SYNCS, fd)) \
            return -1; \
        int result = REAL(name)(fd); \
        if (!result) \
            synced(fd); \
        return result; \
    }
#define WITH_FD(result, name, kind, parameters, ...) \
    result name parameters { return fails(kind, fd) ? -1 : REAL(name)(__VA_ARGS__); }

WRITES_FD(ssize_t, write, (int fd, const void *data, size_t size), place(fd), size, fd, data, size)
WRITES_FD(ssize_t, writev, (int fd, const struct iovec *pieces, int count), place(fd), total(pieces, count), fd, pieces, count)
WRITES_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), at, size, fd, data, size, at)
WRITES_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), at, size, fd, data, size, at)
WRITES_FD(ssize_t, pwritev, (int fd, const struct iovec *pieces, int count, off_t at), at, total(pieces, count), fd, pieces,
          count, at)
WRITES_FD(ssize_t, pwritev64, (int fd, const struct iovec *pieces, int count, off64_t at), at, total(pieces, count), fd,
          pieces, count, at)
WRITES_FD(ssize_t, pwritev2, (int fd, const struct iovec *pieces, int count, off_t at, int flags), at, total(pieces, count),
          fd, pieces, count, at, flags)
WRITES_FD(ssize_t, pwritev64v2, (int fd, const struct iovec *pieces, int count, off64_t at, int flags), at,
          total(pieces, count), fd, pieces, count, at, flags)
SYNCS_FD(fsync)
SYNCS_FD(fdatasync)
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
