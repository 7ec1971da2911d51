/* Gives a kernel in user mode a processor whose state is larger than it knows, as with AMX: it would set a part of that state,
   which the kernel of this machine refuses. Loaded before the C library. */
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The state of one process, whole: no processor has more. Used by one thread alone. */
static char whole[1 << 16];

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    long pid = va_arg(rest, long);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        struct iovec all = {whole, sizeof whole}, *part = data;
        if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) == 0 && part->iov_len < all.iov_len) {
            memcpy(whole, part->iov_base, part->iov_len);
            return syscall(SYS_ptrace, request, pid, address, &all);
        }
    }
    long word = 0;
    int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
    long result = syscall(SYS_ptrace, request, pid, address, peeks ? (void *)&word : data);
    if (peeks && result == 0) {
        errno = 0;
        return word;
    }
    return result;
}
