/* shmfs_limits: space that only dead clients hold, locks that are not available in the middle of a
 * call, files with so many runs that truncating them takes several transactions, and system calls
 * that fail or are interrupted.
 */
#include "shmfs_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

/* --- space held by dead clients -------------------------------------------------------------- */

/* Make a dead client that holds three of four blocks and of four names. */
static struct shmfs *full_of_the_dead(struct shmfs_handle *own)
{
    struct shmfs *fs = small(4);
    struct shmfs_handle file;
    make_file(fs, "a", BLOCK);
    IS(shmfs_create(fs, NULL, 0, own), 0);
    for (int i = 0; i < 2; i++)
        IS(shmfs_create(clients[1], i ? "1" : "0", BLOCK, &file), 0);
    IS(shmfs_write(clients[1], &file, content, 2 * BLOCK, 0), 2 * BLOCK);
    IS(shmfs_link(clients[1], "1", "2"), 0);
    port_drop(&clients[1]->port);
    is_dead[1] = true;
    return fs;
}

static void room_of_the_dead(void)
{
    struct shmfs_handle own, file;
    patience_ms = 0;
    for (int call = 0; call < 6; call++) {
        struct shmfs *fs = full_of_the_dead(&own);
        if (call == 0)
            IS(shmfs_create(fs, NULL, BLOCK, &file), 0);
        else if (call == 1)
            IS(shmfs_create(fs, "new", 0, &file), 0);
        else if (call == 2)
            IS(shmfs_write(fs, &own, content, 3 * BLOCK, 0), 3 * BLOCK);
        else if (call == 3)
            IS(shmfs_commit(fs, &own, "new"), 0);
        else if (call == 4)
            IS(shmfs_link(fs, "a", "new"), 0);
        else
            IS(shmfs_write(fs, &own, content, 4 * BLOCK, 0), SHMFS_ERROR_NO_BLOCKS);
        IS(shmfs_lookup(fs, "1"), SHMFS_ERROR_NOT_FOUND);
        IS(shmfs_sweep(fs), 0);
        attach(1);
        end();
    }
}

/* --- locks that are not available in the middle of a call ------------------------------------ */

static void busy_midst(void)
{
    struct shmfs_handle file, others[4];
    patience_ms = 1;
    struct shmfs *fs = small(8);
    IS(shmfs_create(fs, NULL, 0, &file), 0);
    IS(lock_take(clients[1], LOCK_FAT, 1), 0);
    IS(shmfs_reserve(fs, &file, BLOCK), SHMFS_ERROR_BUSY);
    lock_drop_all(clients[1]);
    IS(shmfs_write(fs, &file, content, 5 * BLOCK, 0), 5 * BLOCK);
    IS(shmfs_write(fs, &file, content, 1, 5 * BLOCK), 1); /* though there is no space for more */
    IS(free_blocks(fs), 2);
    IS(shmfs_set_writing(fs, &file, false), 0);
    take_inodes();
    IS(shmfs_read(fs, &file, content, 1, 0), SHMFS_ERROR_BUSY);
    IS(shmfs_commit(fs, &file, "new"), SHMFS_ERROR_BUSY);
    lock_drop_all(clients[1]);
    IS(shmfs_lookup(fs, "new"), SHMFS_ERROR_NOT_FOUND);
    IS(shmfs_commit(fs, &file, "new"), 0);
    for (int i = 0; i < 3; i++)
        IS(shmfs_create(fs, NULL, 0, &others[i]), 0);
    take_inodes();
    IS(shmfs_create(fs, NULL, 0, &others[3]), SHMFS_ERROR_BUSY);
    lock_drop_all(clients[1]);
    IS(shmfs_create(fs, NULL, 0, &others[3]), SHMFS_ERROR_NO_INODES);
    end();
}

/* The names of a dead client's unfinished files stay while a lock on them is not available. */
static void busy_sweep(void)
{
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = small(8);
    IS(shmfs_create(clients[2], "half", BLOCK, &file), 0);
    port_drop(&clients[2]->port);
    is_dead[2] = true;
    IS(lock_take(clients[1], LOCK_DIRECTORY, 1), 0);
    IS(shmfs_sweep(fs), SHMFS_ERROR_BUSY);
    lock_drop_all(clients[1]);
    IS(shmfs_lookup(fs, "half") > 0, true);
    IS(shmfs_sweep(fs), 1);
    IS(shmfs_lookup(fs, "half"), SHMFS_ERROR_NOT_FOUND);
    IS(free_blocks(fs), 8);
    attach(2);
    end();
}

/* A client attaches to a dead client's slot, or to a free one, while another client holds a
 * lock. */
static void busy_attach(void)
{
    const struct shmfs_options options = {.is_alive = is_alive, .lock_timeout_ms = 1};
    struct shmfs_handle file;
    patience_ms = 1;
    struct shmfs *fs = small(8);
    IS(shmfs_create(clients[2], "half", BLOCK, &file), 0);
    port_drop(&clients[2]->port);
    is_dead[2] = true;
    take_inodes();
    IS(shmfs_attach(&clients[2], storage[2], shmfs_size(), &memory, &options), SHMFS_ERROR_BUSY);
    lock_drop_all(clients[1]);
    IS(shmfs_lookup(fs, "half") > 0, true);
    IS(shmfs_attach(&clients[2], storage[2], shmfs_size(), &memory, &options), 0);
    is_dead[2] = false;
    IS(shmfs_lookup(fs, "half"), SHMFS_ERROR_NOT_FOUND);
    shmfs_detach(clients[2]);
    uint32_t *recovery = &lock(LOCK_STATISTICS)[1].owner;
    port_register_store(&fs->port, recovery, clients[1]->owner);
    IS(shmfs_attach(&clients[2], storage[2], shmfs_size(), &memory, &options), SHMFS_ERROR_BUSY);
    port_register_store(&fs->port, recovery, 0);
    attach(2);
    end();
}

/* Without a way to check liveness, all clients count as alive. */
static void nobody_says(void)
{
    const struct shmfs_options options = {.lock_timeout_ms = 1};
    struct shmfs_handle file;
    struct shmfs *fs = small(8);
    shmfs_detach(fs);
    IS(shmfs_attach(&clients[0], storage[0], shmfs_size(), &memory, &options), 0);
    take_inodes();
    is_dead[1] = true;
    IS(shmfs_create(fs, NULL, 0, &file), SHMFS_ERROR_BUSY);
    IS(shmfs_sweep(fs), 0);
    lock_drop_all(clients[1]);
    IS(shmfs_create(fs, NULL, 0, &file), 0);
    end();
}

/* --- files and handles ----------------------------------------------------------------------- */

/* The next sweep closes LOST_LIMIT handles; detaching closes the rest. */
static void many_lost(void)
{
    struct shmfs_handle file;
    struct shmfs_info info;
    struct shmfs *fs = start((struct shmfs_geometry){.block_count = 4, .inode_count = 4,
                                                     .entry_count = 4, .handle_count = 70});
    make_file(fs, "a", 1);
    for (int i = 0; i < LOST_LIMIT + 2; i++) {
        IS(shmfs_open(fs, "a", &file), 0);
        handle_lose(fs, file.slot);
    }
    IS(shmfs_sweep(fs), 0);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(info.handle_count, 2);
    end();
}

/* A wrong guess does not free a file in use. */
static void not_drained(void)
{
    struct shmfs *fs = small(8);
    struct shmfs_handle file;
    struct shmfs_info info;
    make_file(fs, "a", BLOCK);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(inode_drain(fs, info.inode, info.generation), 0);
    IS(shmfs_create(fs, NULL, BLOCK, &file), 0);
    IS(inode_drain(fs, file.inode, file.generation), 0);
    IS(free_blocks(fs), 6);
    file.generation++;
    IS(inode_grow(fs, &file, 3), SHMFS_ERROR_STALE);
    end();
}

/* A file is truncated in pieces; meanwhile separate runs become adjacent. */
static void cut_in_pieces(bool to_nothing)
{
    struct shmfs_handle file, rest;
    struct shmfs_info info;
    patience_ms = 0;
    struct shmfs *fs = every_second_block();
    IS(shmfs_create(fs, NULL, (RUN_LIMIT + 1) * BLOCK, &file), 0); /* 1, 3, 5, ... */
    IS(shmfs_create(fs, NULL, (128 - RUN_LIMIT - 1) * BLOCK, &rest), 0);
    IS(free_blocks(fs), 0);
    IS(shmfs_unlink(fs, "1"), 0);
    IS(shmfs_reserve(fs, &file, (RUN_LIMIT + 2) * BLOCK), 0); /* and block 2 */
    IS(shmfs_stat_handle(fs, &file, &info), 0);
    IS(info.is_contiguous, false);
    IS(shmfs_write(fs, &file, content, 10, 0), 10);
    IS(shmfs_truncate(fs, &file, to_nothing ? 0 : 10), 0);
    IS(shmfs_stat_handle(fs, &file, &info), 0);
    IS(info.is_contiguous, true);
    IS(info.block_count, !to_nothing);
    IS(port_load32(&fs->port, &inode_refresh(fs, file.inode)->first_block), !to_nothing);
    IS(free_blocks(fs), RUN_LIMIT + 1 + to_nothing);
    check();
    end();
}

/* --- results of system calls ----------------------------------------------------------------- */

/* A client that cannot tell whether the owner is alive does not take over its lock. */
static void blind(void)
{
    const struct shmfs_options options = {.lock_timeout_ms = 1};
    struct shmfs_geometry geometry = {.block_bytes = BLOCK, .block_count = 4, .inode_count = 4,
                                      .entry_count = 4, .client_count = 2, .handle_count = 4};
    struct shmfs *fs[2];
    struct shmfs_handle file;
    char path[64];
    IS(shmfs_sizes(&geometry, &memory.control_bytes, &memory.data_bytes), 0);
    const int fd = memfd_create("control", MFD_CLOEXEC);
    IS(ftruncate(fd, (off_t)(memory.control_bytes + memory.data_bytes)), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    memory.control = mmap(NULL, memory.control_bytes + memory.data_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED, fd, 0);
    memory.data = (uint8_t *)memory.control + memory.control_bytes;
    IS(shmfs_format(&memory, &geometry), 0);
    for (int i = 0; i < 2; i++) {
        memory.control_fd = open(path, O_RDWR | O_CLOEXEC);
        IS(shmfs_attach(&fs[i], storage[i], shmfs_size(), &memory, &options), 0);
    }
    IS(lock_take(fs[1], LOCK_INODES, 1), 0);
    close(fs[0]->memory.control_fd);
    IS(shmfs_create(fs[0], NULL, 0, &file), SHMFS_ERROR_BUSY);
    IS(shmfs_sweep(fs[0]), SHMFS_ERROR_SYSTEM);
    lock_drop_all(fs[1]);
    IS(shmfs_create(fs[0], NULL, 0, &file), 0);
    port_drop(&fs[0]->port);
    IS(shmfs_sweep(fs[1]), 1); /* other clients see it as dead */
    shmfs_detach(fs[1]);
    close(memory.control_fd);
    close(fd);
    check();
    munmap(memory.control, memory.control_bytes + memory.data_bytes);
}

static int ends[2];
static volatile sig_atomic_t rings;
static uint8_t drained[4 * BLOCK];
static ssize_t drained_bytes;

/* Interrupt the first reads while nothing is there; then send one byte, a block, and the end. */
static void feed(int signal)
{
    (void)signal;
    rings++;
    if (rings == 3 || rings == 6)
        IS(write(ends[1], rings == 3 ? content : content + 1, rings == 3 ? 1 : BLOCK),
           rings == 3 ? 1 : BLOCK);
    else if (rings == 9)
        close(ends[1]);
}

static uint32_t harmed; /* an inode */

/* Interrupt writes while the pipe is full. */
static void drain(int signal)
{
    (void)signal;
    if (++rings % 3 == 0) {
        const ssize_t count = read(ends[0], drained + drained_bytes, BLOCK);
        drained_bytes += count > 0 ? count : 0;
    }
}

static void ring(void (*handler)(int))
{
    const struct sigaction action = {.sa_handler = handler ? handler : SIG_DFL}; /* no SA_RESTART */
    const struct itimerval every = {{0, handler ? 2000 : 0}, {0, handler ? 2000 : 0}};
    rings = 0;
    IS(setitimer(ITIMER_REAL, &every, NULL), 0);
    IS(sigaction(SIGALRM, &action, NULL), 0);
    if (!handler)
        alarm(300);
}

static void set_size(uint64_t size_bytes)
{
    struct shmfs *fs = clients[0];
    uint64_t *word = &inode_refresh(fs, harmed)->size_bytes;
    port_store64(&fs->port, word, size_bytes);
    port_flush(&fs->port, word, sizeof *word);
    port_fence(&fs->port);
}

static void harm(int signal)
{
    (void)signal;
    set_size(UINT64_MAX);
}

static void interrupted(void)
{
    struct shmfs_info info;
    patience_ms = 0;
    struct shmfs *fs = small(8);
    IS(pipe(ends), 0);
    ring(feed);
    IS(shmfs_load(fs, ends[0], "a"), 0);
    ring(NULL);
    close(ends[0]);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(info.size_bytes, BLOCK + 1);
    make_file(fs, "b", 3 * BLOCK);
    IS(pipe2(ends, O_CLOEXEC), 0);
    IS(fcntl(ends[1], F_SETPIPE_SZ, BLOCK), BLOCK);
    IS(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    ring(drain);
    IS(shmfs_store(fs, "b", ends[1]), 3 * BLOCK);
    ring(NULL);
    close(ends[1]);
    drained_bytes += read(ends[0], drained + drained_bytes, BLOCK);
    IS(drained_bytes, 3 * BLOCK);
    IS(memcmp(drained, content, 3 * BLOCK), 0);
    close(ends[0]);
    /* damage the stored file after its first bytes have been copied */
    IS(shmfs_stat(fs, "b", &info), 0);
    harmed = info.inode;
    IS(pipe(ends), 0);
    IS(fcntl(ends[1], F_SETPIPE_SZ, BLOCK), BLOCK);
    ring(harm);
    IS(shmfs_store(fs, "b", ends[1]), SHMFS_ERROR_CORRUPT);
    ring(NULL);
    close(ends[0]);
    close(ends[1]);
    set_size(info.size_bytes);
    end();
}

static int loaded; /* descriptor of a file that is being loaded */

static void lengthen(void)
{
    acted = pwrite(loaded, content, 1, BLOCK) - 1;
}

static uint32_t waits; /* number of lock waits that had started before */

/* Release the locks after the client has waited once in vain. */
static void drop_for_second(void)
{
    const uint32_t count = port_register_load(&statistics_of(clients[1])->lock_wait_count);
    if (count > waits + 1)
        lock_drop_all(clients[1]);
}

/* A failure is reported even if later steps succeed. */
static void load_in_vain(int fd)
{
    struct shmfs *fs = clients[0];
    waits = port_register_load(&statistics_of(fs)->lock_wait_count);
    meanwhile = drop_for_second;
    between(fs, take_inodes);
    IS(shmfs_load(fs, fd, "b"), SHMFS_ERROR_BUSY);
    IS(acted, 0);
    meanwhile = NULL;
    IS(clients[1]->held[LOCK_INODES], 0);
    IS(fs->lost_count, 0);
    IS(shmfs_lookup(fs, "b"), SHMFS_ERROR_NOT_FOUND);
}

static void descriptors(void)
{
    char path[64];
    struct shmfs_handle file, other;
    struct shmfs_info info;
    patience_ms = 1;
    struct shmfs *fs = small(300);
    IS(pipe(ends), 0);
    IS(write(ends[1], content, 2 * BLOCK), 2 * BLOCK);
    close(ends[1]);
    IS(shmfs_load(fs, ends[0], "pipe"), 0); /* 1 MiB is reserved, and freed again */
    close(ends[0]);
    IS(free_blocks(fs), 298);
    loaded = memfd_create("file", MFD_CLOEXEC);
    IS(write(loaded, content, BLOCK), BLOCK);
    snprintf(path, sizeof path, "/proc/self/fd/%d", loaded);
    const int unreadable = open(path, O_WRONLY | O_CLOEXEC);
    IS(shmfs_load(fs, unreadable, "a"), SHMFS_ERROR_SYSTEM);
    IS(errno, EBADF);
    close(unreadable);
    IS(lseek(loaded, 0, SEEK_SET), 0);
    between(fs, lengthen); /* the file grows meanwhile */
    IS(shmfs_load(fs, loaded, "a"), 0);
    IS(acted, 0);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(info.size_bytes, BLOCK + 1);
    IS(lseek(loaded, 0, SEEK_SET), 0);
    load_in_vain(loaded);
    IS(pipe(ends), 0);
    IS(write(ends[1], content, 1), 1);
    close(ends[1]);
    load_in_vain(ends[0]);
    close(ends[0]);
    IS(lseek(loaded, 0, SEEK_SET), 0);
    between(fs, take_inodes);
    IS(shmfs_load(fs, loaded, "b"), SHMFS_ERROR_BUSY);
    IS(acted, 0);
    lock_drop_all(clients[1]);
    between(fs, take_inodes);
    IS(shmfs_store(fs, "a", loaded), SHMFS_ERROR_BUSY);
    IS(acted, 0);
    IS(fs->lost_count, 2); /* only this client knows that they are open */
    lock_drop_all(clients[1]);
    IS(shmfs_lookup(fs, "b"), SHMFS_ERROR_NOT_FOUND);
    close(loaded);
    IS(shmfs_create(fs, NULL, 0, &file), 0);
    IS(shmfs_create(fs, NULL, 0, &other), 0); /* gets the inode of "b", which is closed first */
    IS(fs->lost_count, 0);
    IS(shmfs_close(fs, &file), 0);
    IS(shmfs_close(fs, &other), 0);
    IS(shmfs_stat(fs, "a", &info), 0);
    IS(info.handle_count, 0);
    IS(shmfs_create(fs, NULL, free_blocks(fs) * BLOCK, &file), 0);
    IS(pipe(ends), 0);
    IS(write(ends[1], content, 1), 1);
    IS(shmfs_load(fs, ends[0], "b"), SHMFS_ERROR_NO_BLOCKS);
    close(ends[0]);
    close(ends[1]);
    end();
}

int main(void)
{
    alarm(300); /* ends an endless loop */
    fill_content();
    room_of_the_dead();
    busy_midst();
    busy_sweep();
    busy_attach();
    nobody_says();
    cut_in_pieces(false);
    cut_in_pieces(true);
    many_lost();
    not_drained();
    blind();
    interrupted();
    descriptors();
    return 0;
}
