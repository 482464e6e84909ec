/* Adds an offset in microseconds, which a shared file holds, to the time of day of a program: preloaded into redis-server by tests/support/clock.rs.
 * If the second number of the file is not 0, the clock stands still at this time, in microseconds.
 * Clocks that count from a start (CLOCK_MONOTONIC) stay as they are, as they do where somebody sets the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, 2 * sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset_us = page;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (failed || !offset_us || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + offset_us[0] * 1000;
    if (offset_us[1]) ns = offset_us[1] * 1000;
    time->tv_sec = ns / 1000000000;
    time->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict day, void *restrict zone) {
    struct timespec time;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &time)) return -1;
    day->tv_sec = time.tv_sec;
    day->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
