/* nested(n): 1 for 0; otherwise 1 + nested(n - 1), which a child computes. The task is suspended
 * until the child is done, and delegates its output to a successor, which adds the 1. */
#include <ciel.h>
#include <stdlib.h>

static json_t *another(json_t *command, const char *role, json_int_t number)
{
    return json_pack("{s: O, s: [s, I]}", "command", command, "proc_pargs", role, number);
}

int main(int argc, char *argv[])
{
    char text[32] = "";

    ciel_init(argv[argc - 3], argv[argc - 1]);
    json_t *task = ciel_get_task();
    json_t *args = json_object_get(task, "proc_pargs");
    json_t *command = json_object_get(task, "command");
    const char *role = json_string_value(json_array_get(args, 0));
    json_int_t number = json_integer_value(json_array_get(args, 1));

    if (role[0] == 's' || number == 0) { /* the successor, or the innermost */
        snprintf(text, sizeof text, "%lld", (long long)number + 1);
        ciel_define_output_with_plain_string(0, text);
        ciel_exit_keep("no", NULL);
        return 0;
    }
    json_t *child = ciel_spawn("proc", another(command, "nested", number - 1));
    struct ciel_input *input;
    while ((input = ciel_open_ref(child)) == NULL)
        ciel_block_on_refs(1, child);
    ciel_read_ref(input, text, sizeof text - 1);
    ciel_close_ref(input);
    ciel_tail_spawn("proc", another(command, "successor", atol(text)));
    ciel_exit();
    return 0;
}
