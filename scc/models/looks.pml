/* fails: -DNO_RELEASE: log.c mark port_publish32 */
/* fails: -DNO_STORE_FENCE: log.c mark port_fence */
/* fails: -DNO_ACQUIRE: directory.c directory_look_once port_look32 */
/* fails: -DNO_LOAD_FENCE: directory.c directory_look_once port_fence */
/* fails: -DNO_ACQUIRE: shmfs.c list_read_only port_look32 */
/* fails: -DNO_LOAD_FENCE: shmfs.c list_read_only port_fence */
/* fails: -DNO_LOAD_FENCE: shmfs.c stat_read_only port_fence */
/* fails: -DNO_LOAD_FENCE: inode.c read_only_inode port_fence */
/* Lookups of names without locks, on coherent memory with a weak order: a group's `sequence`.
 *
 * The writer has the lock. It makes the number odd, changes names (here two words), and makes the
 * number even again (log.c). The reader accepts what it read if the number was even and equal
 * before and after (directory.c). Stores arrive, and loads are done, in any order that fences,
 * releases and acquires allow; stores to one word arrive in their order. The model shows: accepted
 * words belong to the number. Without any one of the four orderings (`fails` lines) they may not.
 *
 * Clients that only read use the same orderings: `list_read_only` with the sequence of a group, and
 * `stat_read_only` and `read_only_inode` with the generation of an inode, which they know already.
 *
 * Shows CIB-24.
 */
#ifndef ROUNDS
#define ROUNDS 3
#endif

#ifdef NO_RELEASE
#define released true
#else
#define released (has_one && has_other)
#endif
#ifdef NO_STORE_FENCE
#define fenced true
#else
#define fenced has_odd
#endif
#ifdef NO_ACQUIRE
#define acquired true
#else
#define acquired has_first
#endif
#ifdef NO_LOAD_FENCE
#define loaded true
#else
#define loaded (has_one && has_other)
#endif

byte sequence, one, other;

proctype changer()
{
    bool has_odd, has_one, has_other, has_even;
    byte round = 1;
    do
    :: round > ROUNDS -> break
    :: round <= ROUNDS && !has_odd -> sequence = 2 * round - 1; has_odd = true
    :: round <= ROUNDS && !has_one && fenced -> one = round; has_one = true
    :: round <= ROUNDS && !has_other && fenced -> other = round; has_other = true
    :: round <= ROUNDS && !has_even && has_odd && released ->
        sequence = 2 * round; has_even = true
    :: has_odd && has_one && has_other && has_even ->
        d_step { has_odd = 0; has_one = 0; has_other = 0; has_even = 0; round++ }
    od
}

proctype looker()
{
    bool has_first, has_one, has_other, has_last;
    byte first, last, seen_one, seen_other;
    do
    :: !has_first -> first = sequence; has_first = true
    :: !has_one && acquired -> seen_one = one; has_one = true
    :: !has_other && acquired -> seen_other = other; has_other = true
    :: !has_last && has_first && loaded -> last = sequence; has_last = true
    :: has_first && has_one && has_other && has_last -> break
    od;
    assert(first % 2 || first != last || (seen_one == first / 2 && seen_other == first / 2))
}

init
{
    atomic { run changer(); run looker(); run looker() }
}
