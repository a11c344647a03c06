/* Lets Arrow release objects of Python: a chunk of a table that was read keeps the content alive.
 *
 * Arrow releases chunks in any of its threads. This library is not linked with Python, so that one
 * build serves all versions; Python hands its functions over when it loads the library.
 */
#include <stddef.h>

static int (*acquire)(void);
static void (*release)(int);
static void (*drop)(void *);
static int (*is_running)(void);

void ciel_use_python(int (*ensure)(void), void (*leave)(int), void (*dec_ref)(void *),
                     int (*is_initialized)(void)) {
    acquire = ensure;
    release = leave;
    drop = dec_ref;
    is_running = is_initialized;
}

/* Drop a reference to an object of Python; at the end of the process it stays. */
void ciel_let_go(void *object) {
    if (object != NULL && is_running()) {
        int state = acquire();
        drop(object);
        release(state);
    }
}
