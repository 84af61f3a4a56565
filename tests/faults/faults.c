/* A disk that fails when it is told to: kills or errors at the n-th change of a file under one folder.

   Loaded with LD_PRELOAD into a Python that forks one child a trial; a child arms it through ctypes. What only reads
   passes. Built by disk.py with cc; nothing of umbel links to it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COUNT, KILL, TEAR, FULL, BROKEN, FULL_FROM_HERE }; /* what happens at change `due`; TEAR: half-way through it */

static int armed, kind;
static long due;
static long *changes; /* shared with the parent */
static char folder[PATH_MAX];

void fault_arm(int what, long at, long *counter, const char *under) {
    kind = what, due = at, changes = counter, armed = 1;
    snprintf(folder, sizeof folder, "%s", under);
}

void fault_disarm(void) { armed = 0; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int inside(int at, const char *path) {
    char whole[PATH_MAX];
    if (!armed || !path) return 0;
    if (path[0] != '/') { /* relative to the working folder, or to another that is open */
        char link[64];
        ssize_t length;
        if (at == AT_FDCWD) {
            if (!getcwd(whole, sizeof whole)) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            if ((length = readlink(link, whole, sizeof whole - 1)) < 0) return 0;
            whole[length] = 0;
        }
        return !strncmp(whole, folder, strlen(folder));
    }
    return !strncmp(path, folder, strlen(folder));
}

static int inside_open(int handle) {
    char link[64], path[PATH_MAX];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return !strncmp(path, folder, strlen(folder));
}

static void die(void) { kill(getpid(), SIGKILL); pause(); }

/* One change is about to happen: 0 = let it, -1 = it fails with errno set, 1 = tear it and die. */
static int change(void) {
    long now = __sync_fetch_and_add(changes, 1);
    if (kind == FULL_FROM_HERE && now >= due) { errno = ENOSPC; return -1; }
    if (kind == COUNT || now != due) return 0;
    if (kind == KILL) die();
    if (kind == TEAR) return 1;
    errno = kind == BROKEN ? EIO : ENOSPC;
    return -1;
}

#define CHANGES(is_inside, type, call) \
    int fate = (is_inside) ? change() : 0; \
    if (fate < 0) return -1; \
    type result = call; \
    if (fate) die(); \
    return result;

#define WRITES (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest); \
        CHANGES((flags & WRITES) && inside(AT_FDCWD, path), int, REAL(name)(path, flags, mode)) }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest); \
        CHANGES((flags & WRITES) && inside(at, path), int, REAL(name)(at, path, flags, mode)) }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int handle, const void *bytes, size_t count) {
    int fate = inside_open(handle) ? change() : 0;
    if (fate < 0) return -1;
    ssize_t result = REAL(write)(handle, bytes, fate ? count / 2 : count);
    if (fate) die();
    return result;
}

int fsync(int handle) { CHANGES(inside_open(handle), int, REAL(fsync)(handle)) }
int ftruncate(int handle, off_t size) { CHANGES(inside_open(handle), int, REAL(ftruncate)(handle, size)) }
int rename(const char *a, const char *b) { CHANGES(inside(AT_FDCWD, b), int, REAL(rename)(a, b)) }
int link(const char *a, const char *b) { CHANGES(inside(AT_FDCWD, b), int, REAL(link)(a, b)) }
int symlink(const char *a, const char *b) { CHANGES(inside(AT_FDCWD, b), int, REAL(symlink)(a, b)) }
int unlink(const char *path) { CHANGES(inside(AT_FDCWD, path), int, REAL(unlink)(path)) }
int rmdir(const char *path) { CHANGES(inside(AT_FDCWD, path), int, REAL(rmdir)(path)) }
int mkdir(const char *path, mode_t mode) { CHANGES(inside(AT_FDCWD, path), int, REAL(mkdir)(path, mode)) }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    CHANGES(inside(b, to), int, REAL(linkat)(a, from, b, to, flags)) }
int renameat(int a, const char *from, int b, const char *to) {
    CHANGES(inside(b, to), int, REAL(renameat)(a, from, b, to)) }
int unlinkat(int at, const char *path, int flags) { CHANGES(inside(at, path), int, REAL(unlinkat)(at, path, flags)) }
int mkdirat(int at, const char *path, mode_t mode) { CHANGES(inside(at, path), int, REAL(mkdirat)(at, path, mode)) }
